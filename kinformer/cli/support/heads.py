"""What the heads of a model have learned, as a table in text and as a picture."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kinformer.pages.saved import saved

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


def draw(by_name: "Mapping[str, LayerValues]", path: Path, title: str) -> None:
    """Write a picture: for each number a panel with a bar for every head of every layer.

    Errors: ValueError for an ending that Matplotlib does not know; OSError, in one line, where it cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, row = pyplot.subplots(1, len(by_name), figsize=(5 * len(by_name), 3.6), layout="constrained", squeeze=False)
    for axes, (name, by_layer) in zip(row[0], by_name.items(), strict=True):
        heads = max(map(len, by_layer.layers.values()))
        layers = list(zip(by_layer.numbers, by_layer.layers.values(), strict=True))
        for head in range(heads):
            middle = 0.8 * ((head + 0.5) / heads - 0.5)
            bars = [(number + middle, values[head]) for number, values in layers if head < len(values)]
            axes.bar(*zip(*bars, strict=True), width=0.7 / heads, label=f"head {head + 1}")
        axes.set(xlabel="attention layer", ylabel=_title(name, by_layer), xticks=by_layer.numbers)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize=7, ncols=2)
    figure.suptitle(title, fontsize=11)
    saved(figure, path)
    pyplot.close(figure)


def _title(name: str, by_layer: "LayerValues") -> str:
    return f"{name} of each head" + (f", {by_layer.unit}" if by_layer.unit else "")
