"""BlockBERT: with n blocks attention keeps 1/n of the bytes, and it is dense attention under a mask."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from kinformer.claims.support.verdict import Claim, Measure
from kinformer.execute import attend
from kinformer.members.bert import bert
from kinformer.members.blockbert import blockbert
from kinformer.patterns.blockwise import Blockwise
from kinformer.train.cost import cost

BLOCKS, LENGTH, HEADS, WIDTH = (2, 3, 4), 768, 2, 16
SAYS = "with n blocks attention keeps 1/n of the bytes of dense attention, and computes what it does under a mask"
SOURCE = "Qiu et al., 2019, arXiv:1911.02972, abstract and section 3"


def inputs(seed: int, length: int) -> Tensor:
    """Random queries, keys and values [3 B H T K] in float64."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(3, 1, HEADS, length, WIDTH, generator=drawn, dtype=torch.float64).requires_grad_()


def by_blocks(qkv: Tensor, n: int) -> Tensor:
    """Block i of the queries reads block i + 1 of the keys, the last the first, one after the other."""
    q, k, v = (x.chunk(n, 2) for x in qkv)
    return torch.cat([attend(q[i], k[(i + 1) % n], v[(i + 1) % n], impl="reference").y for i in range(n)], 2)


def masked(qkv: Tensor, n: int) -> Tensor:
    """The same by dense attention under a mask."""
    pattern = Blockwise(tuple((i + 1) % n for i in range(n)), qkv.shape[3] // n)
    return attend(*qkv, pattern=pattern, impl="reference").y


def kept(qkv: Tensor, n: int) -> int:
    """Bytes of matrices of pairs that the backward keeps of attention by n blocks."""
    size, found = qkv.shape[3] // n, 0

    def count(x: Tensor) -> Tensor:
        nonlocal found
        found += x.numel() * x.element_size() * (x.is_floating_point() and x.shape[-2:] == (size, size))
        return x

    with saved_tensors_hooks(count, lambda x: x):
        by_blocks(qkv, n)
    return found


def claim(seeds: Sequence[int], blocks: Sequence[int] = BLOCKS, length: int = LENGTH) -> Claim:
    """Bytes and differences for each number of blocks; and what a training step of the members keeps."""
    measures: list[Measure] = []
    shares: dict[int, list[float]] = {}
    for n in blocks:
        drawn = [inputs(seed, length) for seed in seeds]
        shares[n] = [kept(qkv, n) / kept(qkv, 1) for qkv in drawn]
        away = [float((by_blocks(qkv, n) - masked(qkv, n)).detach().abs().max()) for qkv in drawn]
        measures.append(Measure(f"bytes of attention, {n} blocks over one", shares[n], "near", 1 / n, within=0.001))
        measures.append(Measure(f"furthest from dense attention under a mask, {n} blocks", away, "most", 1e-10))
    told, step = {}, length // 3
    whole = cost(bert(d=96, depth=2, heads=12, length=step), 2, step)
    for n in (2, 3):
        found = cost(blockbert(d=96, depth=2, heads=12, blocks=n, length=step), 2, step)
        told[f"kept by a training step, blockbert of {n} blocks over bert, rows of {step}"] = (
            f"{found.activations / whole.activations:.3f}; bert's fused kernel keeps no matrix of pairs at all"
        )
    return Claim(SAYS, SOURCE, tuple(measures), told, {"bytes kept of attention": partial(_draw, shares)})


def _draw(shares: dict[int, list[float]], axes: Any) -> None:
    axes.plot(list(shares), [1 / n for n in shares], "--", color="tab:gray", label="1/n")
    axes.plot(list(shares), [sum(found) / len(found) for found in shares.values()], "o", label="measured")
    axes.set(xlabel="blocks", ylabel="of dense attention", xticks=list(shares), ylim=(0, 0.6))
    axes.legend()
