"""LazyFormer's forward pass is 1.3 times as fast if blocks share attention weights in pairs."""

import time
from collections.abc import Sequence
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.cost.cost import counting
from kinformer.lab.plot import Plot, PlotLine
from kinformer.members.lazyformer import lazyformer
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM

LENGTHS, JUDGED = (128, 512, 1024), 512  # tokens per row; the paper uses 512
SIZES: dict[str, Any] = {"d": 256, "depth": 12, "heads": 4}
ROUNDS, FASTER, COUNTED = 5, 1.3, 1e-6
PLAIN = "m=1"
LazyModel = LM | MLM
SAYS = "a forward pass is 1.3 times as fast if every two blocks share attention weights as without sharing"
SOURCE = "Ying et al., 2021, arXiv:2102.12702 (1.3 times, in pre-training; a forward pass here)"
SCALE = (
    "pre-training of a model of BERT's base size, with rows of 512 tokens, on GPUs. Its baseline stores the attention "
    "weights of each block; the baseline here is the plain member, whose fused kernel stores none"
)


def models(length: int) -> dict[str, LazyModel]:
    """Return LazyFormers by name, in which 1, 2 or 4 consecutive blocks share attention weights.

    With 1 block nothing is shared.

    length: tokens per row.
    """
    return {f"m={every}": lazyformer(**SIZES, every=every, length=length).eval() for every in (1, 2, 4)}


@torch.no_grad()
def seconds(model: LazyModel, tokens: Tensor) -> float:
    """Return the seconds of a forward pass of a LazyFormer.

    model: model to time.
    tokens: batch.
    """
    began = time.perf_counter()
    model.logits(tokens)
    return time.perf_counter() - began


@torch.no_grad()
def count_flops(model: LazyModel, length: int) -> int:
    """Count additions and multiplications in the matrix products of all blocks for one row.

    The count does not depend on the executor.

    model: model to count.
    length: tokens in the row.
    """
    x = torch.zeros(1, length, model.body.d)
    with counting() as tally:
        model.body(x)
    return tally.flops


def formula(every: int, length: int) -> float:
    """Return the expected count of multiplications and additions without sharing, divided by with sharing.

    A block of width d has 24 L d^2 + 4 L^2 d of them. A block that reuses attention weights projects no queries and
    keys, and has 20 L d^2 + 4 L^2 d.

    every: number of consecutive blocks that share attention weights.
    length: tokens per row, L.

    Differences: the paper keeps the matrix of attention weights, so blocks that reuse it compute no scores. Here these
    blocks multiply the queries and keys of the block below again in a fused kernel, which takes less time and memory.
    """
    d = SIZES["d"]
    whole, reuses = 24 * d + 4 * length, 20 * d + 4 * length
    return every * whole / (whole + (every - 1) * reuses)


def claim(seeds: Sequence[int], lengths: Sequence[int] = LENGTHS, rounds: int = ROUNDS) -> Claim:
    """Compare forward passes of LazyFormers whose blocks share attention weights or do not.

    The models are timed alternately, each with its fastest executor (way to compute attention). Each seed reports the
    median ratio of times. The claim holds if a model whose blocks share weights in pairs is at least 1.3 times as fast
    at rows of 512 tokens. The ratio of counted multiplications and additions must also agree with `formula` within
    1e-6. This shows that blocks that reuse attention weights project no queries and keys.

    The claim does not hold: at rows of 512 tokens the blocks are 1.03 times as fast. A block that reuses weights saves
    only the projections of queries and keys, and `formula` gives 1.07 for them. The paper's baseline stores attention
    weights, which the fused kernel of both models here never does.

    seeds: seeds of weights and tokens.
    lengths: tokens per row.
    rounds: number of timed rounds per seed.
    """
    speed: dict[str, dict[int, list[float]]] = {}
    counts: dict[str, dict[int, float]] = {}
    for seed in seeds:
        for length in lengths:
            with seeded(seed):
                members, tokens = models(length), torch.randint(256, (1, length))
            turns = [{name: seconds(model, tokens) for name, model in members.items()} for _ in range(rounds + 1)][1:]
            for name in members:
                ratio = median(turn[PLAIN] / turn[name] for turn in turns)
                speed.setdefault(name, {}).setdefault(length, []).append(ratio)
            if seed == seeds[0]:
                of = {name: count_flops(model, length) for name, model in members.items()}
                for name, count in of.items():
                    counts.setdefault(name, {})[length] = of[PLAIN] / count
    judged = JUDGED if JUDGED in lengths else lengths[-1]
    measures = (
        Measure(f"speed of m=2 divided by m=1, rows of {judged}", speed["m=2"][judged], "least", FASTER, no_effect=1.0),
        Measure(
            f"matrix products of m=1 divided by m=2, which projects half the queries and keys, rows of {judged}",
            (counts["m=2"][judged],),
            "near",
            formula(2, judged),
            within=COUNTED,
        ),
    )
    facts = {
        **{f"speed of {name} divided by m=1": _by_length(by) for name, by in speed.items() if name != PLAIN},
        **{
            f"matrix products of m=1 divided by {name}": ", ".join(
                f"{ratio:.2f} at {n} tokens" for n, ratio in by.items()
            )
            for name, by in counts.items()
            if name != PLAIN
        },
    }
    facts["the paper's scale"] = SCALE
    lines = []
    for n, name in enumerate(name for name in speed if name != PLAIN):
        timed = [mean(speed[name][length]) for length in lengths]
        lines.append(PlotLine(lengths, timed, f"{name}, time", "o-", f"C{n}"))
        counted = [counts[name][length] for length in lengths]
        lines.append(PlotLine(lengths, counted, f"{name}, products", "--", f"C{n}"))
    plot = Plot(
        "forward pass", "tokens per row", "speed relative to m=1", lines, levels=((FASTER, ""),), log="x", ticks=lengths
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))


def _by_length(by: dict[int, list[float]]) -> str:
    return ", ".join(f"{mean(ratios):.2f} at {n} tokens" for n, ratios in by.items())
