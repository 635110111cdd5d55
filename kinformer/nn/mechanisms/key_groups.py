"""Groups: sets of keys chosen by content. A query reads the keys that carry a number of its own.

The numbers are tags of queries and keys: a bucket in each of several rounds of hashes, a cluster. `SameGroupScore` says
what is read; `nn/mechanisms/sorted_groups.py` reads it at the cost of the groups where that is less.
"""

from functools import reduce

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.heads import HeadSizes
from kinformer.core.layer import Context
from kinformer.core.request import Request
from kinformer.core.scores.product import Product

LAST_RESORT = 1e5  # what a token's score of itself loses: it reads itself where there is nothing else


class SameGroupScore(Product):
    """The product of a query and the keys that share a group with it in at least one round; no other key is read.

    tag: the name of the groups among the tags of queries [B H T R] and keys [B G S R * H / G].
    lonely: a token finds itself too, with so low a score that it reads itself only where it finds nothing else.
    """

    def __init__(self, tag: str, *, lonely: bool = False):
        super().__init__()
        self.tag, self.lonely = tag, lonely

    def change(self, request: Request) -> Float[Tensor, "B H T S"]:
        shares_group = reduce(torch.Tensor.logical_or, _share_group(request, self.tag))
        change = request.queries.q.new_zeros(shares_group.shape).masked_fill_(~shares_group, -torch.inf)
        return change.masked_fill_(own_pairs(request), -LAST_RESORT) if self.lonely else change


def own_column(request: Request) -> tuple[Int[Tensor, "B #H T"], Bool[Tensor, "B #H T"]]:
    """For each query the column of the key at its own position, and whether there is one."""
    q_pos, k_pos = request.queries.pos, request.keys.pos
    if q_pos is k_pos:
        return torch.arange(q_pos.shape[2], device=q_pos.device).expand(q_pos.shape), q_pos >= 0
    heads = max(q_pos.shape[1], k_pos.shape[1])
    q_pos, k_pos = (pos.expand(-1, heads, -1) for pos in (q_pos, k_pos))
    sorted_pos, order = k_pos.sort(-1)
    at = torch.searchsorted(sorted_pos, q_pos.contiguous()).clamp(max=max(k_pos.shape[2] - 1, 0))
    has_key = (sorted_pos.take_along_dim(at, -1) == q_pos) & (q_pos >= 0) & request.keys.own
    return order.take_along_dim(at, -1), has_key


def own_pairs(request: Request) -> Bool[Tensor, "B #H T S"]:
    """Which key is the query's own token."""
    itself = request.queries.pos[..., :, None] == request.keys.pos[..., None, :]
    return itself if request.keys.own else torch.zeros_like(itself)


def gather_columns(x: Float[Tensor, "B G S n"] | Int[Tensor, "B G S n"], at: Int[Tensor, "B N H w"]) -> Tensor:
    """Columns of each query head from what its key head has, N of them folded into the batch: [B*N H w n]."""
    batch, groups, length, width = x.shape
    _, count, heads, columns = at.shape
    group = torch.arange(heads, device=at.device) * groups // heads
    row = torch.arange(batch, device=at.device)[:, None] * groups + group  # [B H]
    flat = (row[:, None, :, None] * length + at).flatten()
    return x.reshape(-1, width).index_select(0, flat).view(batch * count, heads, columns, width)


def gather_positions(pos: Int[Tensor, "B #H S"], at: Int[Tensor, "B N H w"], is_key: Bool[Tensor, "B N H w"]) -> Tensor:
    """Positions of such columns [B*N H w], -1 where there is none."""
    return gather_columns(pos[..., None], at)[..., 0].masked_fill(~is_key.flatten(0, 1), -1)


def by_query_head(tag: Int[Tensor, "B G S N"], heads: int) -> Int[Tensor, "B H S R"]:
    """Tags that a key has for each query head of its group, the heads in order."""
    return tag.unflatten(-1, (heads // tag.shape[1], -1)).transpose(2, 3).flatten(1, 2)


def by_key_head(tag: Int[Tensor, "B H S R"], groups: int) -> Int[Tensor, "B G S N"]:
    """The way back."""
    return tag.unflatten(1, (groups, -1)).transpose(2, 3).flatten(3)


def check_no_additions(part: object, ctx: Context, sets: str) -> None:
    """ValueError where a batch adds keys, which a part that reads sets of its own choice cannot."""
    if ctx.also is not None:
        name = type(part).__name__
        raise ValueError(f"{name} reads its {sets} and cannot add keys to them by ctx.also; use Softmax, or drop it")


def check_no_limits(part: object, ctx: Context, sets: str, instead: str) -> None:
    """Refuse ctx.only for a part that chooses its sets from all tokens of a row."""
    if ctx.only is not None:
        name = type(part).__name__
        raise ValueError(
            f"{name} makes its {sets} from all tokens of a row, so tokens that ctx.only excludes would change them; "
            f"use {instead}, or drop it"
        )


def check_made_for_keys(part: object, k: Float[Tensor, "B G S K"], heads: int, k_dim: int) -> None:
    """ValueError for keys, whose heads may be fewer, that are not of the sizes a part was made for."""
    if not k.shape[1] or heads % k.shape[1] or k_dim != k.shape[3]:
        raise ValueError(_misfit_message(part, heads, k_dim, k.shape[1], k.shape[3]))


def check_made_for_queries(part: object, q: Float[Tensor, "B H T K"], heads: int, k_dim: int) -> None:
    """ValueError for queries that are not of the sizes a part was made for."""
    if (q.shape[1], q.shape[3]) != (heads, k_dim):
        raise ValueError(_misfit_message(part, heads, k_dim, q.shape[1], q.shape[3]))


def check_made_for_layer(part: object, sizes: HeadSizes, heads: int, k_dim: int) -> None:
    """ValueError for a layer that is not of the sizes a part was made for."""
    if (sizes.heads, sizes.k_dim) != (heads, k_dim):
        raise ValueError(_misfit_message(part, heads, k_dim, sizes.heads, sizes.k_dim))


def _misfit_message(part: object, heads: int, k_dim: int, got_heads: int, width: int) -> str:
    return (
        f"{type(part).__name__} was made for {heads} heads of width {k_dim} and got {got_heads} of width {width}; "
        f"make it with heads={got_heads}, k_dim={width}"
    )


def groups_of(request: Request, tag: str) -> tuple[Int[Tensor, "B H T R"], Int[Tensor, "B H S R"]]:
    """The groups of queries, and of keys as each query head sees them."""
    q = request.queries.tags[tag]
    return q, by_query_head(request.keys.tags[tag], q.shape[1])


def _share_group(request: Request, tag: str):  # type: ignore[no-untyped-def]
    """For each round which pairs are in one group [B H T S]."""
    q, k = groups_of(request, tag)
    return (q[..., :, None, n] == k[..., None, :, n] for n in range(q.shape[-1]))
