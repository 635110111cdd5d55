"""Sparse and linear attention against PyTorch's dense attention, forward and backward, by length."""

import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import torch
from interleave import Contender, Middle, middle, race, ready, setup
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from kinformer import Context, attend
from kinformer.core.bias import Bias
from kinformer.core.heads import Keys, Queries
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.blocks import Blocks
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.biases.transformer_xl import TransformerXL
from kinformer.nn.maps.elu import ELU
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.lsh import LSH
from kinformer.nn.mechanisms.routing import Routing
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.fixed import Fixed
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tokens import Tokens

HEADS, WIDTH = 4, 64
LENGTHS, LONGEST = (1_024, 4_096, 16_384), 65_536
XL = Causal() & Segment(128, 128)
RESULTS = Path(__file__).parent / "results"


class Row(NamedTuple):
    """What is measured; `causal` says against which dense attention."""

    name: str
    call: Callable[[Tensor, Tensor, Tensor], Tensor]
    causal: bool = True
    longest: bool = False


def pattern(pattern: Pattern) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda q, k, v: attend(q, k, v, pattern=pattern).y


def biased(pattern: Pattern, make: Callable[[], Bias]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    bias = make()
    return lambda q, k, v: attend(q, k, v, pattern=pattern, bias=bias).y


def mechanism(make: Callable[[int], Mechanism]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    mechanisms: dict[int, Mechanism] = {}

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[2]
        if length not in mechanisms:
            mechanisms[length] = make(length).train()
        ctx = Context.of_sequence(q[:, 0])
        pos = ctx.by_head
        return mechanisms[length](Queries(q, pos), Keys(k, v, pos), None, ctx).y.y

    return call


def bigbird(length: int) -> Pattern:
    """Blocks of 64: three of a window, two that are global, three drawn, by a table."""
    blocks = length // 64
    random_blocks = Random(3, 1, symmetric=False, head=0).matrix(blocks)
    table = tuple(tuple(row.nonzero().flatten().tolist()) for row in random_blocks)
    return Block(64, 1, 1) | Tokens(128) | Rows(128) | Blocks(table, 64)


def rows(length: int) -> list[Row]:
    side = int(length**0.5)
    return [
        Row("window: Causal & Band(256)", pattern(Causal() & Band(256)), longest=True),
        Row("strided: Causal & (Band(128) | Strided(128))", pattern(Causal() & (Band(128) | Strided(128)))),
        Row("fixed: Causal & Fixed(128, 8)", pattern(Causal() & Fixed(128, 8))),
        Row("longformer: Band(256) | Tokens(4) | Rows(4)", pattern(Band(256) | Tokens(4) | Rows(4)), causal=False),
        Row("bigbird: 3 window, 2 global, 3 random blocks of 64", pattern(bigbird(length)), causal=False),
        Row("Transformer-XL: its bias, Causal & Segment(128, 128)", biased(XL, lambda: TransformerXL(HEADS, WIDTH))),
        Row("ALiBi, Causal & Band(256)", biased(Causal() & Band(256), lambda: ALiBi(HEADS))),
        Row("LSH, 64 buckets, one round", mechanism(lambda _: LSH(HEADS, WIDTH, 64))),
        Row("routing, sqrt(L) clusters", mechanism(lambda n: Routing(HEADS, WIDTH, side))),
        Row("linear, elu", mechanism(lambda _: LinearAttention(ELU())), longest=True),
        Row("linear, FAVOR+ of 256", mechanism(lambda _: LinearAttention(FAVOR(WIDTH, 256)))),
    ]


def step(call: Callable[[Tensor, Tensor, Tensor], Tensor], length: int) -> Contender:
    """Forward and backward, with gradients of q, k and v."""
    q, k, v, gradient = (torch.randn(1, HEADS, length, WIDTH) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    return ready(lambda: torch.autograd.grad(call(*leaves), leaves, gradient))


def dense(causal: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def main() -> None:
    rounds = setup(f"{__doc__} float32, batch 1, {HEADS} heads of {WIDTH}.")
    ratios: dict[str, dict[int, Middle]] = {}
    for length in LENGTHS:
        contenders = {"dense, causal": step(dense(True), length), "dense": step(dense(False), length)}
        race_of(contenders, rows(length), length, ratios, rounds, 1)
    shorter = {"dense, causal": step(dense(True), LONGEST // 4), "dense": step(dense(False), LONGEST // 4)}
    race_of(shorter, [row for row in rows(LONGEST) if row.longest], LONGEST, ratios, min(rounds, 5), 16)
    show(ratios)


def race_of(
    contenders: dict[str, Contender],
    measured: list[Row],
    length: int,
    ratios: dict[str, dict[int, Middle]],
    rounds: int,
    times: int,
) -> None:
    """One race of all that is measured at a length; what dense attention takes is multiplied by `times`."""
    of_rows = {row.name: step(row.call, length) for row in measured}
    seconds = race(contenders | of_rows, rounds)
    for row in measured:
        against = seconds["dense, causal" if row.causal else "dense"]
        ratio = middle(times * other / ours for ours, other in zip(seconds[row.name], against, strict=True))
        ratios.setdefault(row.name, {})[length] = ratio
        took = middle(duration * 1e3 for duration in seconds[row.name])
        times_as_fast = f"{ratio.median:6.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"
        print(f"{length:>7,}  {row.name:<52} {took.median:9,.1f} ms  {times_as_fast}")
    print(flush=True)


def show(ratios: dict[str, dict[int, Middle]]) -> None:
    """A table, and bench/results/sparse.json and .png."""
    lengths = (*LENGTHS, LONGEST)
    print("| faster than dense attention | " + " | ".join(f"{n:,}" for n in lengths) + " |")
    print("|---" * (1 + len(lengths)) + "|")
    for name, by in ratios.items():
        cells = [f"{by[n].median:.1f} [{by[n].low:.1f}, {by[n].high:.1f}]" if n in by else "" for n in lengths]
        print(f"| {name.replace('|', 'or')} | {' | '.join(cells)} |")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "sparse.json").write_text(json.dumps(ratios, indent=1) + "\n")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for (name, by), mark in zip(ratios.items(), cycle("osD^vPX*<>"), strict=False):
        style = "-" if len(axes.lines) < 10 else "--"  # ten colours, then they come again
        axes.plot(list(by), [ratio.median for ratio in by.values()], marker=mark, linestyle=style, label=name)
        axes.fill_between(
            list(by), [ratio.low for ratio in by.values()], [ratio.high for ratio in by.values()], alpha=0.15
        )
    axes.axhline(1, color="gray", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="length", ylabel="times as fast as dense attention")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths], minor=False)
    axes.set_yticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
    axes.set_title("Forward and backward, one layer's read, float32 on a CPU")
    axes.legend(fontsize=7)
    figure.savefig(RESULTS / "sparse.png", dpi=120)


if __name__ == "__main__":
    main()
