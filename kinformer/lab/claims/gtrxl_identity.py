"""A fresh stack of gated blocks (GTrXL) returns its input within 15 percent."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import mean
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.layer import Context
from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.plot import Plot, PlotLine
from kinformer.members.gtrxl import gtrxl
from kinformer.members.support.gated_xl import B_G, BIASED, GateName
from kinformer.nn.depth.stack import Stack

WITHIN = 0.15
BY_FORMULA = 0.1  # allowed relative deviation of the GRU gates' change from the closed form
WIDTH, DEPTH, LENGTH = 128, 4, 64  # the member's default size, one segment
DEEPEST, STARTS = 12, (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
SAYS = "at the start the output of a stack of gated blocks equals its input within 15 percent"
SOURCE = "Parisotto et al., 2019, arXiv:1910.06764, section 3.2, gated identity initialization"
SCALE = (
    "stacks of 12 blocks with b_g = 2. The paper gives no size of the change; the bound of 15 percent is fixed here, "
    "and the equation of its GRU gate exceeds it at any width"
)
GATES: tuple[GateName, ...] = get_args(GateName)


class StreamChange(NamedTuple):
    """Change of a residual stream from the input to the output of sublayers, mean over positions.

    size: norm of the difference divided by the norm of the input.
    cosine: cosine of the angle between input and output.
    """

    size: float
    cosine: float


def change(x: Tensor, y: Tensor) -> StreamChange:
    """Return the relative size of the difference of two tensors, and their cosine, mean over positions.

    x: input of some sublayers.
    y: output of these sublayers.
    """
    size = (y - x).norm(dim=-1) / x.norm(dim=-1)
    return StreamChange(float(size.mean()), float(F.cosine_similarity(x, y, dim=-1).mean()))


@torch.no_grad()
def changes(gate: GateName, seed: int, depth: int, b_g: float = B_G, d: int = WIDTH) -> list[StreamChange]:
    """Return the changes of a random input after 1, 2, ... sublayers of an untrained GTrXL stack.

    The input is normally distributed. A block has two sublayers, each with a gate.

    gate: kind of gate.
    seed: seed of the weights and of the input.
    depth: number of blocks.
    b_g: initial bias of the gates; gates without a bias ignore it.
    d: width.
    """
    with seeded(seed):
        start: dict[str, Any] = {"b_g": b_g} if gate in BIASED else {}
        stack = gtrxl(d=d, depth=depth, heads=4, segment=LENGTH, memory=0, gate=gate, **start).body.eval()
        assert isinstance(stack, Stack)
        x = y = torch.randn(1, LENGTH, d)
        changes_so_far, ctx = [], Context.of_sequence(x)
        for block in stack.layers:
            for layer, join, norm in zip(block.layers, block.joins, block.norms, strict=True):
                y = join(y, partial(layer, state=None, ctx=ctx), norm).y
                changes_so_far.append(change(x, y))
        return changes_so_far


def formula(sublayers: int, b_g: float = B_G) -> float:
    """Return the expected change of the residual stream by n GRU gates: 1 - (1 - sigmoid(-b_g))^n.

    Each gate replaces the share sigmoid(-b_g) of the stream by a candidate, which is assumed to be 0.

    sublayers: number of gates n.
    b_g: initial bias of the gates.
    """
    return 1 - (1 - 1 / (1 + math.exp(b_g))) ** sublayers


def claim(seeds: Sequence[int], depth: int = DEPTH, deepest: int = DEEPEST, d: int = WIDTH) -> Claim:
    """Measure how much untrained stacks with each kind of gate change the residual stream.

    The claim holds if 4 blocks change the residual stream by at most 0.15 with each of the four gates that have a bias.
    The change of `gru` must also be within 10% of the value of `formula`. The gate without a bias, TrXL-I and TrXL are
    reported for comparison.

    The claim does not hold for `gru` and `highway`, by the equation of the gate in the paper. With b_g = 2 a gate
    replaces sigmoid(-2) = 12% of the stream, so the 8 gates of 4 blocks replace 1 - 0.88^8 = 64% of it; measured: 66%.
    The direction of the stream stays (cosine 0.98), and the norm before each sublayer hides its smaller size. From
    b_g = 5 on, 4 blocks change it by less than 15%. `output` and `sigtanh` add to the stream instead of replacing it,
    and change it by 8% and 2%.

    seeds: seeds of weights and inputs.
    depth: number of blocks for the verdict.
    deepest: largest number of blocks in the report.
    d: width.
    """
    runs = {gate: [changes(gate, seed, deepest, d=d) for seed in seeds] for gate in GATES}
    by_start = {b_g: [changes("gru", seed, deepest, b_g, d) for seed in seeds] for b_g in STARTS}
    measures = [
        Measure(
            f"relative change by {depth} blocks, {gate}",
            [run[2 * depth - 1].size for run in runs[gate]],
            "most",
            WITHIN,
        )
        for gate in BIASED
    ]
    ratio = [run[2 * depth - 1].size / formula(2 * depth) for run in runs["gru"]]
    measures.append(
        Measure(
            f"relative change by {depth} blocks, gru, divided by the formula", ratio, "near", 1.0, within=BY_FORMULA
        )
    )
    spots = {"one gate": 1, "1 block": 2, f"{depth} blocks": 2 * depth, f"{deepest} blocks": 2 * deepest}
    facts = {f"relative change by {', '.join(spots)}, {gate}": _summary(runs[gate], spots.values()) for gate in GATES}
    for name, n in spots.items():
        enough = [b_g for b_g in STARTS if _mean(by_start[b_g], n) <= WITHIN]
        facts[f"smallest integer b_g at which {name} of gru stays within the threshold"] = (
            f"{min(enough):g}" if enough else "none up to 6"
        )
    facts["the paper's scale"] = SCALE
    # a style of its own for highway, because its curve lies on the curve of gru
    numbers, styles = range(1, 2 * deepest + 1), {"highway": "^--", **dict.fromkeys(BIASED, "o-")}
    ylabel, levels = "relative change of the stream", ((WITHIN, ""),)
    lines = [
        PlotLine(numbers, [_mean(runs, n) for n in numbers], gate, styles.get(gate, "s:"))
        for gate, runs in runs.items()
    ]
    by_depth = Plot(
        f"change at the start, line at {WITHIN:.0%}, b_g = {B_G:g}",
        "sublayers",
        ylabel,
        lines,
        levels=levels,
        log="y",
        ylim=(5e-4, 3),
    )
    lines = [PlotLine(STARTS, [_mean(runs, n) for runs in by_start.values()], name, "o-") for name, n in spots.items()]
    by_bias = Plot("change by gru and its initial bias", "initial b_g", ylabel, lines, levels=levels, log="y")
    return Claim(SAYS, SOURCE, tuple(measures), facts, (by_depth, by_bias))


def _mean(runs: Sequence[Sequence[StreamChange]], sublayers: int) -> float:
    return mean(run[sublayers - 1].size for run in runs)


def _summary(runs: Sequence[Sequence[StreamChange]], spots: Iterable[int]) -> str:
    return ", ".join(f"{_mean(runs, n):.3f} (cosine {mean(run[n - 1].cosine for run in runs):.3f})" for n in spots)
