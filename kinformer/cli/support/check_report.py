"""The plots of a check: patterns, and time and memory against length."""

from torch import Tensor

from kinformer.lab.cost.growth import Growth, power
from kinformer.lab.plot import Plot, PlotLine

MOST = 4  # patterns


def check_plots(patterns: dict[str, Tensor], growth: Growth) -> list[Plot]:
    """The first patterns, then time, then bytes, both on logarithmic axes."""
    images = [Plot(name, "key", "query", image=matrix.tolist()) for name, matrix in [*patterns.items()][:MOST]]
    if not growth.lines():
        return images
    exponent, xlabel = power(growth.seconds), "tokens in a row"
    title = "" if exponent is None else f"about like length^{exponent:.1f}"
    time = [PlotLine(growth.lengths, growth.seconds, "", "o-")]
    space = [PlotLine(growth.lengths, growth.saved_bytes, "kept for gradients", "o-")]
    if growth.state:
        space.append(PlotLine(growth.lengths, growth.state, "state for decoding", "s-"))
    axes = ((title, "seconds with gradients", time), ("", "bytes", space))
    return images + [Plot(name, xlabel, unit, lines, log="xy", ticks=growth.lengths) for name, unit, lines in axes]
