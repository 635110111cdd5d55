"""Plots of claims: every part of the data is in the axes, and lines of one label share a colour and a legend entry."""

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kinformer.lab.plot import Plot, PlotLine, growth_lines, seed_mean
from kinformer.pages.plots import draw_plot, save_plots, svg


def drawing(plot: Plot) -> Axes:
    axes = Figure().subplots()
    draw_plot(plot, axes)
    return axes


def legend(axes: Axes) -> list[str]:
    box = axes.get_legend()
    return [] if box is None else [text.get_text() for text in box.get_texts()]


def test_lines_of_one_label_share_a_colour_and_an_entry() -> None:
    lines = [
        PlotLine((1, 2), (3, 4), "a", "o-"),
        PlotLine((1, 2), (5, 6), "a"),
        PlotLine((1, 2), (7, 8), "b", "--", "black", band=((6, 7), (8, 9))),
        PlotLine((1, 2), (0, 1)),
    ]
    axes = drawing(
        Plot("title", "x", "y", lines, levels=((4, "level"), (5, "")), log="x", ticks=(1, 2), ylim=(0, None))
    )
    first, second, third, fourth, *levels = axes.lines
    assert first.get_color() == second.get_color() != fourth.get_color() and third.get_color() == "black"
    assert [list(line.get_ydata()) for line in (first, second, third, fourth)] == [[3, 4], [5, 6], [7, 8], [0, 1]]
    assert legend(axes) == ["a", "b", "level"] and len(levels) == 2 and len(axes.collections) == 1
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_ylim()[0]) == ("log", "linear", 0)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2"]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("title", "x", "y")


@pytest.mark.parametrize("horizontal", [False, True])
def test_bars_are_means_and_dots_are_samples(horizontal: bool) -> None:
    samples = {"a": [[1.0, 3.0], [5.0, 5.0]], "b": [[0.0, 1.0], [2.0, 4.0]]}
    axes = drawing(Plot("", samples=samples, categories=("p", "q"), bars=True, horizontal=horizontal))
    sizes = [bar.get_width() if horizontal else bar.get_height() for bar in axes.patches]
    assert sizes == [2, 5, 0.5, 3] and legend(axes) == ["a", "b"]
    values = [list(dots.get_xdata() if horizontal else dots.get_ydata()) for dots in axes.lines]
    assert values == [[1, 3, 5, 5], [0, 1, 2, 4]]
    places = [list(dots.get_ydata() if horizontal else dots.get_xdata()) for dots in axes.lines]
    assert places[0] == pytest.approx([-0.2, -0.2, 0.8, 0.8]) and places[1] == pytest.approx([0.2, 0.2, 1.2, 1.2])


def test_an_image_and_a_file(tmp_path: Path) -> None:
    plot = Plot("", image=((0, 1), (2, 3)), darkest=3)
    (image,) = drawing(plot).images
    assert image.get_array().tolist() == [[0, 1], [2, 3]] and image.get_clim() == (0, 3)
    save_plots((plot, Plot("", lines=growth_lines({"cost": (1, 4)}, (2, 4)))), "title", tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size


def test_means_and_growth() -> None:
    assert seed_mean(((1, 2), (3, 6))) == [2, 4]
    (line,) = growth_lines({"cost": (1, 8, 64)}, (1, 2, 4))
    assert line.label == "cost: L^3.00" and line.y == (1, 8, 64)


def test_a_drawing_for_a_page_has_its_colour_and_its_width() -> None:
    text = svg(Plot("", "steps", "bits", [PlotLine((1, 2), (3, 4), style="o-")]))
    head = text.partition(">")[0]
    assert head.startswith("<svg") and "width=" not in head and "height=" not in head and "viewBox" in head
    assert "currentColor" in text and ">steps<" in text and "metadata" not in text


def test_a_legend_is_readable_on_a_dark_page() -> None:
    text = svg(Plot("", "steps", "bits", [PlotLine((1, 2), (3, 4))], levels=[(3.5, "gzip -9")]))
    assert "gzip -9" in text and "#ffffff" not in text  # the text takes the page's colour, so no box is white


def test_rows_of_plots_share_an_axis_and_a_legend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr("kinformer.pages.plots.save_figure", lambda figure, path: figures.append(figure))
    plots = [Plot("", lines=[PlotLine((0, 1), (0, n), "a")]) for n in (1, 2, 3, 4)]
    save_plots(plots, "title", tmp_path / "a.png", columns=2, share_y=True, one_legend=True)
    (figure,) = figures
    first, second, third, fourth = figure.axes
    assert first.get_ylim() == second.get_ylim() != third.get_ylim() == fourth.get_ylim()
    assert not any(axes.get_legend() for axes in figure.axes) and len(figure.legends) == 1
