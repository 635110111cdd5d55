"""The picture of a check: patterns, and time and memory against length."""

from pathlib import Path
from textwrap import fill

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402  (the backend is chosen first)
from torch import Tensor  # noqa: E402

from kinformer.cli.support.growth import Growth, power  # noqa: E402
from kinformer.pages.saved import saved  # noqa: E402

MOST = 4  # patterns


def draw(patterns: dict[str, Tensor], growth: Growth, path: Path) -> None:
    """The first patterns side by side, then time, then bytes, both on logarithmic axes."""
    drawn, curves = list(patterns.items())[:MOST], 2 if growth.lines() else 0
    figure, row = pyplot.subplots(
        1, len(drawn) + curves, figsize=(4 * (len(drawn) + curves), 4), layout="constrained", squeeze=False
    )
    for axes, (label, matrix) in zip(row[0], drawn, strict=False):
        axes.imshow(matrix.numpy(), cmap="Greys", vmin=0, vmax=1)
        axes.set(xlabel="key", ylabel="query")
        axes.set_title(fill(label, 40), fontsize=9)
    if curves:
        time, space = row[0][-2:]
        time.loglog(growth.lengths, growth.seconds, marker="o")
        found = power(growth.seconds)
        time.set(ylabel="seconds with gradients", title="" if found is None else f"about like length^{found:.1f}")
        space.loglog(growth.lengths, growth.kept, marker="o", label="kept for gradients")
        if growth.state:
            space.loglog(growth.lengths, growth.state, marker="s", label="state for decoding")
        space.set(ylabel="bytes")
        space.legend()
        for axes in (time, space):
            axes.set_xlabel("tokens in a row")
            axes.grid(alpha=0.3)
    saved(figure, path)
    pyplot.close(figure)
