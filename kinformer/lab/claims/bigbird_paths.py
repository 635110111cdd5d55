"""Random blocks in addition to a window shorten the paths between tokens (BigBird)."""

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
WINDOW, KEYS = 1, 3  # blocks on either side, and random blocks: 3 window and 3 random blocks as in the paper
SAYS = "random edges added to a window shorten the shortest paths between tokens, both the mean and the longest"
SOURCE = "Zaheer et al., 2020, arXiv:2007.14062, section 2: shortest paths of a random graph are logarithmic in n"


class Paths(NamedTuple):
    """Lengths of the shortest paths between the nodes of a graph, in steps.

    mean: mean length over all pairs of nodes.
    diameter: length of the longest of these shortest paths.
    """

    mean: float
    diameter: float


def paths(pattern: Pattern, size: int) -> Paths:
    """Return the lengths of the shortest paths in an attention pattern, seen as a graph.

    The nodes are blocks of tokens. Two blocks are neighbours if one of them attends to the other. If the graph is not
    connected, the lengths are infinite.

    pattern: attention pattern with blocks of one token.
    size: number of blocks.
    """
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
    """Return two attention patterns of a BigBird layer by name: its window, and window and random blocks.

    Global tokens are left out.

    seed: index of the layer; every layer has other random blocks.
    """
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
    """Return an attention pattern without its global tokens.

    Through global tokens any two tokens are only two steps apart, so the other patterns would not matter.

    pattern: pattern of a BigBird layer, a union of window, random blocks and global tokens.
    """
    if not isinstance(pattern, Or):
        return pattern
    left, right = pattern.left, pattern.right
    return without_global(left) if isinstance(right, Rows | Tokens) else without_global(left) | right


def claim(seeds: Sequence[int], sizes: Sequence[int] = SIZES) -> Claim:
    """Measure the shortest paths between tokens in a window pattern with and without random blocks.

    A step of a path goes from a block of tokens to a block that it attends to, or back. Measured here: the mean and the
    longest of the shortest paths with window and random blocks, divided by the same with only the window. The claim
    holds if both ratios are below 1 at the largest number of blocks. Global tokens are left out.

    seeds: indices of layers, which have different random blocks.
    sizes: numbers of blocks.
    """
    window = [paths(graphs(0)["window"], size) for size in sizes]
    mixed = [[paths(graphs(seed)["window and random blocks"], size) for size in sizes] for seed in seeds]
    means = [mean(run[n].mean for run in mixed) for n in range(len(sizes))]
    says = f"of {sizes[-1]} blocks, window and random blocks divided by window only"
    measures = (
        Measure(f"mean shortest path {says}", [run[-1].mean / window[-1].mean for run in mixed], "most", 1.0),
        Measure(
            f"diameter (longest shortest path) {says}",
            [run[-1].diameter / window[-1].diameter for run in mixed],
            "most",
            1.0,
        ),
    )
    facts = {
        f"mean path of {size} blocks": f"{near.mean:.4g} with the window only, {short:.4g} with random blocks"
        for size, near, short in zip(sizes, window, means, strict=True)
    }
    facts["growth exponent of the mean path in the number of blocks"] = (
        f"{slope(sizes, [run.mean for run in window]):.3f} with the window only, "
        f"{slope(sizes, means):.3f} with random blocks"
    )
    facts["increase of the mean path at each doubling of the blocks"] = ", ".join(
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
