"""read_columns: attention in which each query has its own list of selected keys."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.attend import read
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.choice import run_checkpointed
from kinformer.core.heads import Keys, Queries, number_of_groups
from kinformer.core.request import Request
from kinformer.nn.mechanisms.highest_scores import block_sizes


def read_columns(request: Request, columns: Int[Tensor, "B H T R"]) -> AttentionOutput:
    """Return the attention of each query to its own list of keys, one block of queries at a time.

    The backward pass gathers the keys again, because storing R keys for each query would take too much memory.

    request: attention call with its queries and keys.
    columns: columns (places in the key tensor) of the keys of each query, [B, H, T, R]; -1 for none.
    """
    sizes = block_sizes(request)
    if len(sizes) == 1:
        return _read_columns(request, columns)
    queries = request.queries
    # split once, because the gradient of a slice is as long as the row
    pieces = zip(*(x.split(sizes, 2) for x in (queries.q, queries.pos, columns)), strict=True)
    recomputes = torch.is_grad_enabled() and queries.q.requires_grad
    reads = []
    for q, pos, at in pieces:
        piece = request.replace(queries=Queries(q, pos, head=queries.head))
        reads.append(run_checkpointed(_read_columns, piece, at) if recomputes else _read_columns(piece, at))
    return AttentionOutput(*(torch.cat(parts, 2) for parts in zip(*reads, strict=True)))


def _read_columns(request: Request, columns: Int[Tensor, "B H T R"]) -> AttentionOutput:
    """Read all queries as rows of a larger batch, each with its own keys."""
    queries, keys = request.queries, request.keys
    batch, heads, length, _ = queries.q.shape
    b, h = torch.arange(batch, device=columns.device)[:, None, None, None], torch.arange(heads, device=columns.device)
    slots_read = columns.clamp_min(0)

    def gather(x: Tensor) -> Tensor:
        """Gather [B G S ..] at the columns of each query as [B*T H R ..]; a head reads the keys of its group."""
        group = h // number_of_groups(heads, x.shape[1])
        return x[b, group[:, None, None], slots_read].transpose(1, 2).flatten(0, 1)

    def vectors(x: Tensor) -> Tensor:
        """Do the same for [B G S D] as an embedding lookup, in a third of the time, gradients included."""
        groups, slots = x.shape[1:3]
        row = (b * groups + (h // number_of_groups(heads, groups))[:, None, None]) * slots + slots_read  # [B H T R]
        return F.embedding(row, x.reshape(-1, x.shape[3])).transpose(1, 2).flatten(0, 1)

    def by_query(x: Tensor) -> Tensor:
        """Move queries into the batch: [B #H T ..] to [B*T #H 1 ..]."""
        return x.transpose(1, 2).flatten(0, 1).unsqueeze(2)

    alone = Queries(by_query(queries.q), by_query(queries.pos), head=queries.head)
    pos = gather(keys.pos).masked_fill(columns.transpose(1, 2).flatten(0, 1) < 0, -1)
    gathered_keys = Keys(vectors(keys.k), vectors(keys.v), pos, own=keys.own)
    rows = b.flatten().repeat_interleave(length)
    result = read(request.regroup(queries=alone, keys=gathered_keys, rows=rows, lse=True))
    assert result.lse is not None
    y, lse = (x[:, :, 0].unflatten(0, (batch, length)).transpose(1, 2) for x in (result.y, result.lse))  # [B H T ..]
    return AttentionOutput(y, lse)
