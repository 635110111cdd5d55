"""Groups of keys that are chosen by content: a query reads the keys that share a group number with it.

The group numbers are tags (integers stored beside the vectors) of queries and keys, such as the bucket in each round of
hashing, or a cluster. `SameGroupScore` defines the allowed pairs. If groups are small, `nn/mechanisms/sorted_groups.py`
computes their attention at lower cost.
"""

from functools import reduce

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.heads import HeadSizes
from kinformer.core.layer import Context
from kinformer.core.request import Request
from kinformer.core.scores.product import Product

LAST_RESORT = 1e5  # subtracted from a token's score of itself, so it reads itself only if it finds no other key


class SameGroupScore(Product):
    """Dot product of a query with the keys that share a group with it in one round or more.

    Other keys are masked. A round is one of several independent groupings, such as hash rounds.

    tag: name of the group numbers among the tags of queries [B, H, T, R] and keys [B, G, S, R * H / G].
    lonely: True also lets a token read itself. It subtracts 1e5 from that score, so a token reads itself only if it
        finds no other key.
    """

    def __init__(self, tag: str, *, lonely: bool = False):
        super().__init__()
        self.tag, self.lonely = tag, lonely

    def change(self, request: Request) -> Float[Tensor, "B H T S"]:
        shares_group = reduce(torch.Tensor.logical_or, _share_group(request, self.tag))
        change = request.queries.q.new_zeros(shares_group.shape).masked_fill_(~shares_group, -torch.inf)
        return change.masked_fill_(own_pairs(request), -LAST_RESORT) if self.lonely else change


def own_column(request: Request) -> tuple[Int[Tensor, "B #H T"], Bool[Tensor, "B #H T"]]:
    """Return the index (column) of the key at each query's own position, and whether there is one.

    request: attention call with its queries and keys.
    """
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
    """Return a mask of the pairs in `request` in which the key is the query's own token."""
    itself = request.queries.pos[..., :, None] == request.keys.pos[..., None, :]
    return itself if request.keys.own else torch.zeros_like(itself)


def gather_columns(x: Float[Tensor, "B G S n"] | Int[Tensor, "B G S n"], at: Int[Tensor, "B N H w"]) -> Tensor:
    """Gather the entries of x at given columns, for each query head from its key head, [B*N, H, w, n].

    x: tensor with one entry for each key head and column (place of a token), [B, G, S, n].
    at: columns to gather, [B, N, H, w]; N is folded into the batch.
    """
    batch, groups, length, width = x.shape
    _, count, heads, columns = at.shape
    group = torch.arange(heads, device=at.device) * groups // heads
    row = torch.arange(batch, device=at.device)[:, None] * groups + group  # [B H]
    flat = (row[:, None, :, None] * length + at).flatten()
    return x.reshape(-1, width).index_select(0, flat).view(batch * count, heads, columns, width)


def gather_positions(pos: Int[Tensor, "B #H S"], at: Int[Tensor, "B N H w"], is_key: Bool[Tensor, "B N H w"]) -> Tensor:
    """Gather the positions of keys at given columns, [B*N, H, w], with -1 at entries without a key.

    pos: positions of the keys, [B, #H, S].
    at: columns (places of keys in the tensor) to gather, [B, N, H, w].
    is_key: False at entries without a key, [B, N, H, w].
    """
    return gather_columns(pos[..., None], at)[..., 0].masked_fill(~is_key.flatten(0, 1), -1)


def by_query_head(tag: Int[Tensor, "B G S N"], heads: int) -> Int[Tensor, "B H S R"]:
    """Split the tags (group numbers) of key heads into tags for each query head, in the order of heads.

    tag: tags of keys, [B, G, S, N].
    heads: number of query heads.
    """
    return tag.unflatten(-1, (heads // tag.shape[1], -1)).transpose(2, 3).flatten(1, 2)


def by_key_head(tag: Int[Tensor, "B H S R"], groups: int) -> Int[Tensor, "B G S N"]:
    """Join tags (group numbers) of query heads into tags of key heads; the inverse of `by_query_head`.

    tag: tags for each query head, [B, H, S, R].
    groups: number of key heads.
    """
    return tag.unflatten(1, (groups, -1)).transpose(2, 3).flatten(3)


def check_no_additions(part: object, ctx: Context, sets: str) -> None:
    """Raise ValueError if `ctx.also` is given to a part that chooses its sets of keys, such as clusters.

    part: the part that is checked; the message names it.
    ctx: context of the call.
    sets: name of the part's sets of keys for the message, such as "clusters".
    """
    if ctx.also is not None:
        name = type(part).__name__
        raise ValueError(f"{name} reads its {sets}, so ctx.also cannot add keys to them. Use Softmax, or drop ctx.also")


def check_no_limits(part: object, ctx: Context, sets: str, instead: str) -> None:
    """Raise ValueError if `ctx.only` is given to a part that chooses its sets from all tokens of a row.

    part, ctx, sets: as in `check_no_additions`.
    instead: mechanism that the message recommends in place of this part.
    """
    if ctx.only is not None:
        name = type(part).__name__
        raise ValueError(
            f"{name} makes its {sets} from all tokens of a row, so tokens that ctx.only excludes would change "
            f"them. Use {instead}, or drop ctx.only"
        )


def check_made_for_keys(part: object, k: Float[Tensor, "B G S K"], heads: int, k_dim: int) -> None:
    """Raise ValueError if the keys `k` do not have the sizes that a part was made for.

    There may be fewer key heads than heads.
    part: the part that is checked.
    heads, k_dim: sizes that the part was made for.
    """
    if not k.shape[1] or heads % k.shape[1] or k_dim != k.shape[3]:
        raise ValueError(_misfit_message(part, heads, k_dim, k.shape[1], k.shape[3]))


def check_made_for_queries(part: object, q: Float[Tensor, "B H T K"], heads: int, k_dim: int) -> None:
    """Raise ValueError if the queries `q` do not have the sizes that a part was made for.

    part: the part that is checked.
    heads, k_dim: sizes that the part was made for.
    """
    if (q.shape[1], q.shape[3]) != (heads, k_dim):
        raise ValueError(_misfit_message(part, heads, k_dim, q.shape[1], q.shape[3]))


def check_made_for_layer(part: object, sizes: HeadSizes, heads: int, k_dim: int) -> None:
    """Raise ValueError if a layer's `sizes` are not the sizes that a part was made for.

    part: the part that is checked.
    heads, k_dim: sizes that the part was made for.
    """
    if (sizes.heads, sizes.k_dim) != (heads, k_dim):
        raise ValueError(_misfit_message(part, heads, k_dim, sizes.heads, sizes.k_dim))


def _misfit_message(part: object, heads: int, k_dim: int, got_heads: int, width: int) -> str:
    return (
        f"{type(part).__name__} was made for {heads} heads of width {k_dim}, but got {got_heads} of width "
        f"{width}. Create it with heads={got_heads}, k_dim={width}"
    )


def groups_of(request: Request, tag: str) -> tuple[Int[Tensor, "B H T R"], Int[Tensor, "B H S R"]]:
    """Return the group numbers of queries and of keys in R rounds, both for each query head.

    request: attention call whose queries and keys have these tags (integers beside the vectors).
    tag: name of the group numbers among the tags.
    """
    q = request.queries.tags[tag]
    return q, by_query_head(request.keys.tags[tag], q.shape[1])


def _share_group(request: Request, tag: str):  # type: ignore[no-untyped-def]
    """Return for each round the mask of pairs in one group, [B, H, T, S]."""
    q, k = groups_of(request, tag)
    return (q[..., :, None, n] == k[..., None, :, n] for n in range(q.shape[-1]))
