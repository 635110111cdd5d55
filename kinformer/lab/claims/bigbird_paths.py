"""BigBird: random edges beside a window shorten the paths between tokens."""

from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from kinformer.core.pattern import Or, Pattern
from kinformer.lab.claims.support.claim_models import patterns
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine, slope
from kinformer.members.bigbird import bigbird
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.tokens import Tokens

SIZES = (64, 128, 256, 512, 1024)  # blocks; a block is a node
WINDOW, KEYS = 1, 3  # blocks to either side, and random ones: the paper's three and three
SAYS = "random edges beside a window shorten the shortest paths between tokens, on average and at most"
SOURCE = "Zaheer et al., 2020, arXiv:2007.14062, section 2: shortest paths of a random graph are logarithmic in n"


class Paths(NamedTuple):
    """The lengths of the shortest paths of a graph: their mean, and the longest."""

    mean: float
    diameter: float


def paths(pattern: Pattern, size: int) -> Paths:
    """Of the graph in which two blocks that read each other, either way, are neighbours; infinite if it falls apart."""
    near = pattern.matrix(size)
    near = (near | near.T).float().to_sparse()
    reached: Bool[Tensor, "N N"] = torch.eye(size, dtype=torch.bool)
    steps, total, count = 0, 0.0, size * (size - 1)
    while not bool(reached.all()):
        further = reached | (torch.sparse.mm(near, reached.float()) > 0)
        if torch.equal(further, reached):
            return Paths(float("inf"), float("inf"))
        steps += 1
        total += steps * float((further & ~reached).sum())
        reached = further
    return Paths(total / count, float(steps))


def graphs(seed: int) -> dict[str, Pattern]:
    """The local patterns of layer `seed` of a BigBird with blocks of one token, with and without random blocks."""
    tiny: dict[str, Any] = {
        "d": 2,
        "depth": seed + 1,
        "heads": 1,
        "block": 1,
        "window": WINDOW,
        "length": 2,
        "vocab": 2,
    }
    graphs_by_name = {}
    for name, keys in (("window", 0), ("window and random blocks", KEYS)):
        graphs_by_name[name] = without_global(patterns(bigbird(**tiny, keys=keys))[seed])
    return graphs_by_name


def without_global(pattern: Pattern) -> Pattern:
    """Remove the global parts of a union: through global tokens any two tokens are only two steps apart."""
    if not isinstance(pattern, Or):
        return pattern
    left, right = pattern.left, pattern.right
    return without_global(left) if isinstance(right, Rows | Tokens) else without_global(left) | right


def claim(seeds: Sequence[int], sizes: Sequence[int] = SIZES) -> Claim:
    """Both graphs at every size; the claim is judged at the largest."""
    window = [paths(graphs(0)["window"], size) for size in sizes]
    mixed = [[paths(graphs(seed)["window and random blocks"], size) for size in sizes] for seed in seeds]
    means = [mean(run[n].mean for run in mixed) for n in range(len(sizes))]
    says = f"of {sizes[-1]} blocks, window and random over window alone"
    measures = (
        Measure(f"mean shortest path {says}", [run[-1].mean / window[-1].mean for run in mixed], "most", 1.0),
        Measure(f"diameter {says}", [run[-1].diameter / window[-1].diameter for run in mixed], "most", 1.0),
    )
    facts = {
        f"mean path of {size} blocks": f"{near.mean:.4g} by the window, {short:.4g} with random blocks"
        for size, near, short in zip(sizes, window, means, strict=True)
    }
    facts["exponent of the mean path in the number of blocks"] = (
        f"{slope(sizes, [run.mean for run in window]):.3f} by the window, {slope(sizes, means):.3f} with random blocks"
    )
    facts["added to the mean path by each doubling"] = ", ".join(
        f"{b - a:.3f}" for a, b in zip(means, means[1:], strict=False)
    )
    return Claim(SAYS, SOURCE, measures, facts, (_plot(sizes, window, mixed),))


def _plot(sizes: Sequence[int], window: list[Paths], mixed: list[list[Paths]]) -> Plot:
    lines = []
    for graph, style, colour, runs in (
        ("window", "o", "tab:gray", [window]),
        ("with random blocks", "s", "tab:blue", mixed),
    ):
        for run in runs:
            lines.append(PlotLine(sizes, [path.mean for path in run], f"{graph}, mean", f"{style}-", colour))
            lines.append(PlotLine(sizes, [path.diameter for path in run], f"{graph}, longest", f"{style}--", colour))
    return Plot("shortest paths", "blocks", "steps", lines, log="xy", ticks=sizes)
