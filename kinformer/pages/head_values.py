"""Learned numbers of the attention heads of a model, as a text table and as a picture."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kinformer.lab.plot import Plot
from kinformer.pages.plots import save_plots

if TYPE_CHECKING:
    from kinformer.lab.train.head_values import LayerValues


def tables(by_name: "Mapping[str, LayerValues]") -> Iterator[str]:
    """Yield the lines of a text table for each learned number, such as the span of a head.

    A table begins with a line that names the learned number. It has one row per attention layer and one column per
    head.

    by_name: the values of each number by layer and head.
    """
    for name, by_layer in by_name.items():
        heads = max(map(len, by_layer.layers.values()))
        yield _title(name, by_layer)
        yield f"{'layer':<7}" + "".join(f"{f'head {head}':>10}" for head in range(1, heads + 1))
        for number, values in zip(by_layer.numbers, by_layer.layers.values(), strict=True):
            yield f"{number:<7}" + "".join(f"{value:>10.4g}" for value in values)


def save_head_values(by_name: "Mapping[str, LayerValues]", path: Path, title: str) -> None:
    """Draw each learned number as a bar plot, with one bar for every head of every layer.

    by_name: the values of each number by layer and head.
    path: the file to write; its ending sets the format.
    title: text above all plots.

    Errors: ValueError if Matplotlib does not know the ending of `path`; OSError if the file cannot be written.
    """
    plots = []
    for name, by_layer in by_name.items():
        heads = range(max(map(len, by_layer.layers.values())))
        samples = {f"head {n + 1}": [values[n : n + 1] for values in by_layer.layers.values()] for n in heads}
        layers = [str(number) for number in by_layer.numbers]
        plots.append(Plot("", "attention layer", _title(name, by_layer), samples=samples, categories=layers, bars=True))
    save_plots(plots, title, path, size=(5, 3.6))


def _title(name: str, by_layer: "LayerValues") -> str:
    return f"{name} of each head" + (f", {by_layer.unit}" if by_layer.unit else "")
