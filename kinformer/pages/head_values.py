"""What the heads of a model have learned, as a table in text and as a picture."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kinformer.lab.plot import Plot
from kinformer.pages.plots import save_plots

if TYPE_CHECKING:
    from kinformer.lab.train.head_values import LayerValues


def tables(by_name: "Mapping[str, LayerValues]") -> Iterator[str]:
    """For each number a line that names it, then one line for each attention layer, with a column for each head."""
    for name, by_layer in by_name.items():
        heads = max(map(len, by_layer.layers.values()))
        yield _title(name, by_layer)
        yield f"{'layer':<7}" + "".join(f"{f'head {head}':>10}" for head in range(1, heads + 1))
        for number, values in zip(by_layer.numbers, by_layer.layers.values(), strict=True):
            yield f"{number:<7}" + "".join(f"{value:>10.4g}" for value in values)


def save_head_values(by_name: "Mapping[str, LayerValues]", path: Path, title: str) -> None:
    """Draw each number as a plot with a bar for every head of every layer.

    Errors: ValueError for an ending that Matplotlib does not know; OSError, in one line, if the file cannot be written.
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
