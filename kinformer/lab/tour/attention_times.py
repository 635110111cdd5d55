"""Time of dense, windowed and linear attention as a function of row length."""

from collections.abc import Callable, Sequence
from statistics import median
from time import monotonic
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from kinformer.attend import attend
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.nn.maps.elu import ELU
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.patterns.band import Band

LENGTHS = (1024, 2048, 4096, 8192, 16384)
HEADS, WIDTH, WINDOW = 4, 64, 256
ROUNDS = 3
Call = Callable[[Tensor, Tensor, Tensor], Tensor]


class AttentionTime(NamedTuple):
    """Milliseconds of one forward and backward pass of attention, the median of several rounds.

    name: name of the attention.
    length: tokens in the row.
    milliseconds: the time.
    """

    name: str
    length: int
    milliseconds: float


def _dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v, pattern=Causal() & Band(WINDOW - 1), lse=False).y


def _linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    ctx = Context.of_sequence(q[:, 0])
    y: Tensor = LinearAttention(ELU())(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y.y
    return y


ATTENTION: dict[str, Call] = {"dense (PyTorch)": _dense, f"window of {WINDOW}": _window, "linear": _linear}


def time_attention(
    seconds: float, lengths: Sequence[int] = LENGTHS, on_progress: Callable[[float], None] = lambda done: None
) -> list[AttentionTime]:
    """Time causal attention over rows of several lengths: dense, with a window, and linear.

    The batch is one row with 4 heads of width 64, on the CPU. The three kinds of attention take turns, so that other
    load of the machine slows down all of them.

    seconds: time limit. A length is left out if its dense attention, which takes about four times as long as at half
        the length, would exceed it; rounds are dropped before lengths.
    lengths: tokens in a row, ascending.
    on_progress: called with the fraction of the lengths that are done.
    """
    times: list[AttentionTime] = []
    began, last = monotonic(), 0.0
    for n, length in enumerate(lengths):
        if times and monotonic() - began + 4 * last > seconds:
            break
        rows: dict[str, list[float]] = {name: [] for name in ATTENTION}
        inputs = [torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3)]
        gradient = torch.randn(1, HEADS, length, WIDTH)
        for turn in range(ROUNDS + 1):
            now = monotonic()
            for name, call in ATTENTION.items():
                rows[name].append(_milliseconds(call, inputs, gradient))
            last = monotonic() - now
            # the first round of a length also makes plans, so it counts only if there is no time for another
            if turn and monotonic() - began + last > seconds * (n + 1) / len(lengths):
                break
        times += [AttentionTime(name, length, median(values[1:] or values)) for name, values in rows.items()]
        on_progress((n + 1) / len(lengths))
    return times


def _milliseconds(call: Call, inputs: Sequence[Tensor], gradient: Tensor) -> float:
    began = monotonic()
    torch.autograd.grad(call(*inputs), inputs, gradient)
    return 1000 * (monotonic() - began)
