"""Laws of the figures: they draw, fit into a terminal, and no text covers another or leaves its drawing."""

import importlib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from kinformer.core.feature_map import FeatureMap
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.trigonometric import Trigonometric
from kinformer.pages import figures
from kinformer.pages.figures.performer import errors_of_exponentials, errors_of_waves
from kinformer.pages.idea import all_ideas
from kinformer.pages.idea_figures import idea_figures
from kinformer.pages.pictures.support.diagram import Circle, Diagram, Frame, Label, texts
from kinformer.pages.pictures.support.diagram_svg import diagram_svg, kind_colour
from kinformer.pages.pictures.support.diagram_terminal import diagram_lines
from kinformer.pages.pictures.support.matplotlib_picture import palette, save
from kinformer.pages.pictures.support.terminal import lines

WIDTH = 100
NAMES = sorted(path.stem for path in Path(figures.__file__).parent.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_fits_and_its_texts_are_readable(name: str) -> None:
    drawn = list(importlib.import_module(f"kinformer.pages.figures.{name}").draw())
    assert drawn
    for figure in drawn:
        assert figure.caption
        if not isinstance(figure, Diagram):
            shown = [line.plain for line in lines(figure, WIDTH)]
            assert max(map(len, shown)) <= WIDTH
            continue
        assert figure.width <= WIDTH
        places: dict[tuple[int, int], str] = {}
        for words in texts(figure):
            assert words.x >= 0, words
            assert words.y >= 0, words
            assert not {(words.x + n, words.y) for n in range(len(words.text))} & places.keys(), words
            places |= {(words.x + n, words.y): words.text for n in range(len(words.text))}
        for box in figure.shapes:
            if isinstance(box, Frame):
                assert box.height != 2, "a frame and its text need 3 lines"
                inside = box.text.split("\n")
                assert max(map(len, inside)) <= box.width - 2, box
                assert len(inside) <= max(1, box.height - 2), box
        shown = [line.plain for line in diagram_lines(figure, WIDTH)]
        for words in texts(figure):
            assert any(words.text.strip() in line for line in shown), words
        svg = ElementTree.fromstring(diagram_svg(figure))
        assert svg.get("aria-label") == figure.caption


def test_every_figure_belongs_to_a_page() -> None:
    used = {figure for idea in all_ideas().values() for figure in idea.figures}
    assert set(NAMES) == used


def test_diagrams_and_pictures_go_into_one_file(tmp_path: Path) -> None:
    drawn = list(importlib.import_module("kinformer.pages.figures.lsh").draw())
    for kind in ("png", "svg"):
        path = tmp_path / f"figure.{kind}"
        save("LSH", drawn, path)
        assert path.stat().st_size > 1000


def test_the_formulas_of_the_performer_curves_agree_with_the_features() -> None:
    angles = torch.tensor([90.0, 120.0, 160.0])  # smaller angles need too many directions
    k, q = torch.stack([angles.deg2rad().cos(), angles.deg2rad().sin()], 1)[None, None], torch.tensor([[[[1.0, 0.0]]]])

    def measure(map: FeatureMap) -> torch.Tensor:
        (of_q, scale), (of_k, scales) = map(q, True), map(k, False)
        products = of_q[0, 0] * of_k[0, 0] * (scale[0, 0] + scales[0, 0]).exp()[:, None]
        by_direction = products.unflatten(1, (-1, directions)).sum(1) * directions
        return by_direction.std(1) / (q[0, 0] @ k[0, 0].T / 2**0.5).exp()[0]

    directions = 100_000
    for map, errors in (
        (FAVOR(2, directions, eps=0.0, orthogonal=False), errors_of_exponentials(angles)),
        (Trigonometric(2, directions, orthogonal=False), errors_of_waves(angles)),
    ):
        torch.testing.assert_close(measure(map), errors, rtol=0.04, atol=0)


@pytest.mark.parametrize("name", sorted(all_ideas()))
def test_a_kind_has_one_colour_in_all_figures_of_an_idea(name: str) -> None:
    colours: dict[str, set[str]] = {}
    for figure in idea_figures(all_ideas()[name]):
        if isinstance(figure, Diagram):
            drawn = [kind_colour(n + 1) for n in range(len(figure.kinds))]
        else:
            drawn = palette(len(figure.kinds)) if len(figure.kinds) > 1 else []  # one kind needs no other colour
        for kind, colour in zip(figure.kinds, drawn, strict=False):
            colours.setdefault(kind, set()).add(colour)
    assert not {kind: several for kind, several in colours.items() if len(several) > 1}


@pytest.mark.parametrize("name", ["routing", "clustered"])
def test_no_label_lies_across_a_circle(name: str) -> None:
    for figure in importlib.import_module(f"kinformer.pages.figures.{name}").draw():
        circles = [shape for shape in getattr(figure, "shapes", ()) if isinstance(shape, Circle)]
        for circle in circles:
            for label in texts(figure):
                if len(label.text) == 1:
                    continue  # the point of a token
                ends = [(x - circle.x) ** 2 / 4 + (label.y - circle.y) ** 2 for x in _columns(label)]
                assert len({end < circle.radius**2 for end in ends}) == 1, label.text


def _columns(label: Label) -> range:
    return range(label.x, label.x + len(label.text))
