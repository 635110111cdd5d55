"""What `auto` takes: a read beside the fastest call of PyTorch's that means the same, and beside each executor.

`python bench/auto.py [calls] [requests]`: one table, or both.
"""

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from interleave import Contender, format_interval, middle, race, ready, setup_with_words
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from kinformer import attend
from kinformer.attend import EXECUTORS, impl_of
from kinformer.core.bias import Bias
from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.biases.t5 import T5

HEADS, WIDTH = 4, 64
# of the fastest call's time, from so many tokens on
MOST = {64: 2.0, 512: 1.25, 4096: 1.15}
MEANINGS = ("Full()", "Causal()", "Causal() & Band(64)", "Band(64) | Tokens(2) | Rows(2)")
SEED, REQUESTS, LARGEST = 0, 40, 1 << 25  # pairs of all heads, of which the reference holds the scores
PATTERNS = (
    "Full()",
    "Causal()",
    "Causal() & Band({w})",
    "Band({w})",
    "Causal() & Segment({w}, {w})",
    "Causal() & (Band({w}) | Strided({w}))",
    "Causal() & Fixed({w}, 4)",
    "Band({w}) | Tokens(2) | Rows(2)",
    "Block({w}, 1, 1) | Random(2, {w})",
    "Causal() & Dilated({w}, 4)",
)
RESULTS = Path(__file__).parent / "results"


def backward(call: Callable[[], Tensor], leaves: list[Tensor]) -> Contender:
    """A read and the gradients of what has them."""
    gradient = torch.randn_like(call())
    return ready(lambda: torch.autograd.grad(call(), leaves, gradient))


def calls(rounds: int) -> None:
    """By the default call, with its lse, forward and backward; the masks of PyTorch's calls are made beforehand."""
    print(
        "| tokens | batch | dtype | read | auto, ms | over the fastest call | wanted |\n|---|---|---|---|---|---|---|"
    )
    for length, most in MOST.items():
        for batch in (1, 8):
            for dtype in (torch.float32, torch.bfloat16):
                for words in MEANINGS:
                    took, over = _over_the_fastest(parse(words), length, batch, dtype, rounds)
                    name = words.replace("|", "or")
                    print(
                        f"| {length:,} | {batch} | {str(dtype)[6:]} | {name} | {took} | {over} | {most} |", flush=True
                    )
    print()


def _over_the_fastest(pattern: Pattern, length: int, batch: int, dtype: torch.dtype, rounds: int) -> tuple[str, str]:
    q, k, v = leaves = [torch.randn(batch, HEADS, length, WIDTH, dtype=dtype, requires_grad=True) for _ in range(3)]
    read = pattern.matrix(length)[None, None]
    shut = torch.zeros(read.shape, dtype=dtype).masked_fill_(~read, -torch.inf)
    dense = partial(F.scaled_dot_product_attention, q, k, v)
    theirs: dict[str, Callable[[], Tensor]] = {
        "a mask": partial(dense, attn_mask=read),
        "-inf": partial(dense, attn_mask=shut),
    }
    if pattern in (parse("Full()"), parse("Causal()")):
        theirs = {"dense": partial(dense, is_causal=pattern == parse("Causal()"))}
    mine: Callable[[], Tensor] = lambda: attend(q, k, v, pattern=pattern).y  # noqa: E731
    seconds = race({name: backward(call, leaves) for name, call in ({"auto": mine} | theirs).items()}, rounds)
    fastest = [min(value) for value in zip(*(seconds[name] for name in theirs), strict=True)]
    ratio = middle(a / b for a, b in zip(seconds["auto"], fastest, strict=True))
    return format_interval(middle(1e3 * value for value in seconds["auto"])), format_interval(ratio)


class Drawn(NamedTuple):
    """What is read: sizes, a pattern, and what else is asked for."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    width: int
    pattern: str
    bias: str
    dtype: torch.dtype
    lse: bool
    gradients: bool
    padded: bool

    def __str__(self) -> str:
        sizes = f"{self.batch} x {self.heads}/{self.groups} x {self.queries:,}/{self.keys:,} x {self.width}"
        options = [self.bias, str(self.dtype)[6:], "", "", "padded"]
        options[2:4] = ["lse" if self.lse else "", "backward" if self.gradients else ""]
        return f"{self.pattern.replace('|', 'or')}, {sizes}, {', '.join(x for x in options[: 4 + self.padded] if x)}"

    def call(self, impl: str) -> Contender:
        """The read by an executor, or by `auto`; the same tensors whenever it is asked."""
        torch.manual_seed(SEED)
        sizes = ((self.heads, self.queries), (self.groups, self.keys), (self.groups, self.keys))
        leaves = [
            torch.randn(self.batch, heads, n, self.width, dtype=self.dtype, requires_grad=self.gradients)
            for heads, n in sizes
        ]
        biases: dict[str, Callable[[], Bias | None]] = {
            "ALiBi": lambda: ALiBi(self.heads),
            "T5": lambda: T5(self.heads),
        }
        bias = biases.get(self.bias, lambda: None)()
        bias = bias if bias is None else bias.to(self.dtype)
        k_pos = torch.arange(self.keys).expand(self.batch, 1, -1).clone()
        if self.padded:
            for row in range(self.batch):
                k_pos[row, :, self.keys - row * self.keys // (2 * self.batch) :] = -1
        q_pos = k_pos[..., -self.queries :] if self.queries < self.keys else k_pos
        pos = {"q_pos": q_pos, "k_pos": k_pos} if self.padded else {}
        q, k, v = leaves
        pattern = parse(self.pattern)

        def read() -> Tensor:
            return attend(q, k, v, pattern=pattern, bias=bias, lse=self.lse, impl=impl, **pos).y

        return backward(read, leaves) if self.gradients else ready(torch.no_grad()(read))


def draw_requests() -> Iterator[Drawn]:
    """Requests by a fixed seed, none with more scores than fit."""
    draw = Random(SEED)
    while True:
        batch, heads = draw.choice((1, 2, 8)), draw.choice((1, 4, 8))
        keys = draw.choice((64, 256, 512, 1024, 2048, 4096))
        queries = draw.choice((keys, keys, keys, keys // 4, 1))
        request = Drawn(
            batch,
            heads,
            draw.choice([n for n in (1, 2, heads) if heads % n == 0]),
            queries,
            keys,
            draw.choice((32, 64)),
            draw.choice(PATTERNS).format(w=draw.choice((16, 64, 128))),
            draw.choice(("", "", "", "ALiBi", "T5")),
            draw.choice((torch.float32, torch.float32, torch.bfloat16)),
            draw.random() < 0.5,
            queries > 1 and draw.random() < 0.6,
            draw.random() < 0.25,
        )
        if batch * heads * queries * keys <= LARGEST:
            yield request


def requests(rounds: int) -> None:
    """How much longer what `auto` takes is than the fastest executor; and a picture of all."""
    print("| request | auto, ms | the fastest | over it |\n|---|---|---|---|")
    ratios: dict[str, list[float]] = {}
    for _, request in zip(range(REQUESTS), draw_requests(), strict=False):
        able = {name: call for name in EXECUTORS if (call := _able(request, name)) is not None}
        seconds = race({"auto": request.call("auto"), **able}, rounds)
        best = min(able, key=lambda name: sorted(seconds[name])[rounds // 2])
        ratio = middle(a / b for a, b in zip(seconds["auto"], seconds[best], strict=True))
        took = middle(1e3 * each for each in seconds["auto"])
        print(f"| {request} | {took.median:,.2f} | {best} | {format_interval(ratio)} |", flush=True)
        ratios[str(request)] = [*ratio]
    worst = max(ratios, key=lambda name: ratios[name][0])
    above = sum(ratio > 1.2 for ratio, *_ in ratios.values())
    print(f"\nThe most: {ratios[worst][0]:.2f}, of {worst}. Above 1.2: {above} of {len(ratios)}.")
    picture(ratios)


def _able(request: Drawn, name: str) -> Contender | None:
    """A named executor's read, or None where it refuses."""
    try:
        call = request.call(impl_of(name))
        call()()
    except ValueError as refused:
        if f"impl={name!r} cannot compute this call" not in str(refused):
            raise
        return None
    return call


def picture(ratios: dict[str, list[float]]) -> None:
    """bench/results/auto.json and .png."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "auto.json").write_text(json.dumps(ratios, indent=1) + "\n")
    ordered = sorted(ratios.values())
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    at = range(1, len(ordered) + 1)
    axes.vlines(at, [low for _, low, _ in ordered], [high for *_, high in ordered], color="tab:blue", alpha=0.4)
    axes.plot(at, [ratio for ratio, *_ in ordered], "o", markersize=4)
    axes.axhline(1, color="gray", linewidth=0.8)
    axes.axhline(1.2, color="gray", linewidth=0.8, linestyle="--")
    most = max(high for *_, high in ordered)
    axes.set(
        ylim=(0.5, min(3.0, math.ceil(most * 5) / 5)),
        xlabel="requests drawn by a fixed seed, in order",
        ylabel="time of auto over that of the fastest executor",
    )
    axes.set_title("What `auto` takes beside the fastest executor: medians and intervals")
    figure.savefig(RESULTS / "auto.png", dpi=120)


def main() -> None:
    rounds, words = setup_with_words(
        f"{__doc__} batch x heads/groups x queries/keys x width.", "calls, requests, or both"
    )
    if not words or "calls" in words:
        calls(rounds)
    if not words or "requests" in words:
        requests(rounds)


if __name__ == "__main__":
    main()
