"""Folded: a read in which each query has keys of its own, found beforehand."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.attend import read
from kinformer.core.choice import recomputed
from kinformer.core.heads import Keys, Queries, number_of_groups
from kinformer.core.read import AttentionOutput
from kinformer.core.request import Request
from kinformer.nn.mechanisms.nearest import blocks


def read_columns(request: Request, columns: Int[Tensor, "B H T R"]) -> AttentionOutput:
    """What each query reads in the keys at its columns, a block of queries at a time; -1 is no key.

    The keys of all queries would be R times as many numbers as there are queries: a backward gathers them again.
    """
    sizes = blocks(request)
    if len(sizes) == 1:
        return _read_block(request, columns)
    queries = request.queries
    # split once: the gradient of a slice is as long as the row
    pieces = zip(*(x.split(sizes, 2) for x in (queries.q, queries.pos, columns)), strict=True)
    recompute = torch.is_grad_enabled() and queries.q.requires_grad
    reads = []
    for q, pos, at in pieces:
        block = request.replace(queries=Queries(q, pos, head=queries.head))
        reads.append(recomputed(_read_block, block, at) if recompute else _read_block(block, at))
    return AttentionOutput(*(torch.cat(parts, 2) for parts in zip(*reads, strict=True)))


def _read_block(request: Request, columns: Int[Tensor, "B H T R"]) -> AttentionOutput:
    """A query is a row of a larger batch, with keys of its own."""
    queries, keys = request.queries, request.keys
    batch, heads, length, _ = queries.q.shape
    b, h = torch.arange(batch, device=columns.device)[:, None, None, None], torch.arange(heads, device=columns.device)
    column = columns.clamp_min(0)

    def gathered(x: Tensor) -> Tensor:
        """[B G S ..] at the columns of each query: [B*T H R ..], a head its group's."""
        group = h // number_of_groups(heads, x.shape[1])
        return x[b, group[:, None, None], column].transpose(1, 2).flatten(0, 1)

    def vectors(x: Tensor) -> Tensor:
        """The same of [B G S D]; a table's rows are looked up, and learn, in a third of the time of any numbers."""
        groups, slots = x.shape[1:3]
        row = (b * groups + (h // number_of_groups(heads, groups))[:, None, None]) * slots + column  # [B H T R]
        return F.embedding(row, x.reshape(-1, x.shape[3])).transpose(1, 2).flatten(0, 1)

    def by_query(x: Tensor) -> Tensor:
        """[B #H T ..] to [B*T #H 1 ..]"""
        return x.transpose(1, 2).flatten(0, 1).unsqueeze(2)

    alone = Queries(by_query(queries.q), by_query(queries.pos), head=queries.head)
    pos = gathered(keys.pos).masked_fill(columns.transpose(1, 2).flatten(0, 1) < 0, -1)
    gathered_keys = Keys(vectors(keys.k), vectors(keys.v), pos, own=keys.own)
    rows = b.flatten().repeat_interleave(length)
    of_queries = read(request.apart(queries=alone, keys=gathered_keys, rows=rows, lse=True))
    assert of_queries.lse is not None
    y, lse = (
        x[:, :, 0].unflatten(0, (batch, length)).transpose(1, 2) for x in (of_queries.y, of_queries.lse)
    )  # [B H T ..]
    return AttentionOutput(y, lse)
