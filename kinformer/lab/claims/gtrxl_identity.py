"""GTrXL: at the start a gated stack hands on what it is given, within 15 percent."""

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
BY_FORMULA = 0.1  # how far the change of the GRU gates may be from the closed form, as a share of it
WIDTH, DEPTH, LENGTH = 128, 4, 64  # a member's usual size, one segment
DEEPEST, STARTS = 12, (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
SAYS = "at the start the output of a stack of gated blocks equals its input within 15 percent"
SOURCE = "Parisotto et al., 2019, arXiv:1910.06764, section 3.2, gated identity initialization"
GATES: tuple[GateName, ...] = get_args(GateName)


class Change(NamedTuple):
    """What sublayers make of their input: its change by size, and the cosine of the two, means over positions."""

    size: float
    cosine: float


def change(x: Tensor, y: Tensor) -> Change:
    """From x to y."""
    size = (y - x).norm(dim=-1) / x.norm(dim=-1)
    return Change(float(size.mean()), float(F.cosine_similarity(x, y, dim=-1).mean()))


@torch.no_grad()
def changes(gate: GateName, seed: int, depth: int, b_g: float = B_G, d: int = WIDTH) -> list[Change]:
    """What the first sublayer, the first two, ... of a fresh stack make of normal numbers; two are a block."""
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
    """The change by n GRU gates whose logits are b_g and whose candidate is 0: 1 - (1 - sigmoid(-b_g))^n."""
    return 1 - (1 - 1 / (1 + math.exp(b_g))) ** sublayers


def claim(seeds: Sequence[int], depth: int = DEPTH, deepest: int = DEEPEST, d: int = WIDTH) -> Claim:
    """How much the four gates with a bias change the stream; the gate without a bias, TrXL-I and TrXL for comparison.

    The claim does not hold for `gru` and `highway`, by the paper's own formula. With b_g = 2 a gate replaces
    sigmoid(-2) = 12% of the stream, so the 8 gates of 4 blocks replace 1 - 0.88^8 = 64% of it; measured: 66%. The
    direction stays (cosine 0.98), and the norm before each sublayer hides the smaller size. 4 blocks stay within 15%
    from b_g = 5 on. `output` and `sigtanh` add to the stream instead of replacing it, and stay within 15% (8% and 2%).
    """
    runs = {gate: [changes(gate, seed, deepest, d=d) for seed in seeds] for gate in GATES}
    by_start = {b_g: [changes("gru", seed, deepest, b_g, d) for seed in seeds] for b_g in STARTS}
    measures = [
        Measure(f"change by {depth} blocks, {gate}", [run[2 * depth - 1].size for run in runs[gate]], "most", WITHIN)
        for gate in BIASED
    ]
    ratio = [run[2 * depth - 1].size / formula(2 * depth) for run in runs["gru"]]
    measures.append(
        Measure(f"change by {depth} blocks, gru, over the formula's", ratio, "near", 1.0, within=BY_FORMULA)
    )
    spots = {"one gate": 1, "1 block": 2, f"{depth} blocks": 2 * depth, f"{deepest} blocks": 2 * deepest}
    facts = {f"change by {', '.join(spots)}, {gate}": _summary(runs[gate], spots.values()) for gate in GATES}
    for name, n in spots.items():
        enough = [b_g for b_g in STARTS if _mean(by_start[b_g], n) <= WITHIN]
        facts[f"least whole b_g with which {name} of gru stays within"] = f"{min(enough):g}" if enough else "none to 6"
    numbers, styles = range(1, 2 * deepest + 1), {"highway": "^--", **dict.fromkeys(BIASED, "o-")}  # highway is on gru
    ylabel, levels = "change of the stream, a share of its size", ((WITHIN, ""),)
    lines = [
        PlotLine(numbers, [_mean(runs, n) for n in numbers], gate, styles.get(gate, "s:"))
        for gate, runs in runs.items()
    ]
    by_depth = Plot(
        f"{WITHIN:.0%} at the start, b_g = {B_G:g}", "sublayers", ylabel, lines, levels=levels, log="y", ylim=(5e-4, 3)
    )
    lines = [PlotLine(STARTS, [_mean(runs, n) for runs in by_start.values()], name, "o-") for name, n in spots.items()]
    by_bias = Plot("gru by where its bias starts", "b_g at the start", ylabel, lines, levels=levels, log="y")
    return Claim(SAYS, SOURCE, tuple(measures), facts, (by_depth, by_bias))


def _mean(runs: Sequence[Sequence[Change]], sublayers: int) -> float:
    return mean(run[sublayers - 1].size for run in runs)


def _summary(runs: Sequence[Sequence[Change]], spots: Iterable[int]) -> str:
    return ", ".join(f"{_mean(runs, n):.3f} (cosine {mean(run[n - 1].cosine for run in runs):.3f})" for n in spots)
