"""Selected tokens: a block computed only for some tokens, which still read the keys of all tokens."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.collected_outputs import Collected
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.memo import Memo, empty_memo
from kinformer.core.module_hooks import has_hooks
from kinformer.core.residual_block import Join, ResidualBlock
from kinformer.core.scores.product import Product
from kinformer.core.tokenwise import check_tokenwise
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import NormLast
from kinformer.nn.blocks.pre_norm import PreNormJoin
from kinformer.nn.mechanisms.softmax import Softmax

GATHERING = 1e8  # multiplications that take as long as gathering tokens and putting them back
FEW = 16  # so few queries take less time than copying the keys of their row; rows with fewer form one group
# makes keys and values of `SelectedTokens.rows` from the sequence or a source; None means a source in the state
MakeKeys = Callable[[Attention], Keys | None]


class RowGroup(NamedTuple):
    """Rows with similar numbers of chosen tokens, padded to M tokens and read together.

    `tokens_at` makes the groups. M is at most 16, or less than twice the number of chosen tokens in any of the rows.

    rows: indices of the rows in the batch.
    keys: indices of these rows in `SelectedTokens.rows`.
    slots: for each place of the group, the index of its token among all chosen tokens.
    pos: positions of the chosen tokens, -1 if a row has fewer than M.
    """

    rows: Int[Tensor, " R"]
    keys: Int[Tensor, " R"]
    slots: Int[Tensor, "R M"]
    pos: Int[Tensor, "R 1 M"]


class SelectedTokens(NamedTuple):
    """The tokens of a batch for which a block is computed, grouped by row; made by `tokens_at`.

    at: ascending indices into the flattened batch [B*T].
    pos: positions of the tokens.
    rows: indices of the rows whose keys and values are computed.
    groups: rows with similar numbers of chosen tokens.
    order: index of each chosen token in the concatenated outputs of all groups.
    memo: cache of facts about positions, shared by all attention calls for these tokens.
    """

    at: Int[Tensor, " n"]
    pos: Int[Tensor, "1 n"]
    rows: Int[Tensor, " K"]
    groups: tuple[RowGroup, ...]
    order: Int[Tensor, " n"]
    memo: Memo


def tokens_at(
    at: Int[Tensor, " n"], pos: Int[Tensor, "B T"], every_row: bool, before: SelectedTokens | None = None
) -> SelectedTokens:
    """Return the chosen tokens of a batch, grouped by row, as `read_tokens` needs them.

    at: ascending indices of the chosen tokens in the flattened batch [B*T].
    pos: positions of all tokens.
    every_row: True computes keys also for rows without a chosen token.
    before: an earlier result that includes these tokens; it is returned if the number of tokens is the same.
    """
    if before is not None and len(before.at) == len(at):
        return before
    batch, length = pos.shape
    row, positions = at // length, pos.flatten()[at]
    counts = row.bincount(minlength=batch)
    rows = torch.arange(batch, device=at.device) if every_row else counts.nonzero()[:, 0]
    # by powers of two, so that one row with many tokens adds no padding to the others
    sizes = [(max(count, FEW) - 1).bit_length() if count else -1 for count in counts.tolist()]
    groups, order, used = [], torch.empty_like(at), 0
    for size in sorted({*sizes} - {-1}):
        inside = torch.tensor([r for r, bits in enumerate(sizes) if bits == size], device=at.device)
        slot = torch.arange(int(counts[inside].amax()), device=at.device)
        real = slot < counts[inside, None]  # [R M]
        slots = torch.where(real, (counts.cumsum(0) - counts)[inside, None] + slot, 0)
        groups.append(
            RowGroup(inside, torch.searchsorted(rows, inside), slots, torch.where(real, positions[slots], -1)[:, None])
        )
        order[slots[real]] = used + real.flatten().nonzero()[:, 0]
        used += real.numel()
    return SelectedTokens(at, positions[None], rows, tuple(groups), order, empty_memo())


def serves_tokens(layer: Layer) -> bool:
    """Return True if `read_tokens` can compute this layer for some chosen tokens only.

    The layer must be a block of an `Attention` with a plain `Softmax`, then tokenwise layers and cross-attention.

    layer: the layer to test.
    """
    if not isinstance(layer, ResidualBlock) or layer.sends or layer.wants:
        return False
    first, *rest = layer.layers
    return (
        isinstance(first, Attention)
        and not first.cross
        and _reads_each_query(first)
        and all(
            _reads_each_query(part) and part.cross if isinstance(part, Attention) else _is_tokenwise(part)
            for part in rest
        )
        and all(isinstance(join, PreNormJoin | NormLast) for join in layer.joins)
        and all(isinstance(norm, nn.LayerNorm | nn.RMSNorm | nn.Identity) for norm in layer.norms)
    )


def _reads_each_query(attention: Attention) -> bool:
    """Return True if each query is computed independently, from keys that depend only on the tokens."""
    mechanism = attention.mechanism
    plain = type(mechanism) is Softmax and mechanism.bias is None and type(mechanism.score) is Product
    return (
        plain
        and attention.memory is None
        and attention.side is None
        and attention.key_side is None
        and isinstance(attention.aggregation, OutProjection)
    )


def _is_tokenwise(layer: Layer) -> bool:
    try:
        return bool(check_tokenwise("layer", layer, "be read by tokens"))
    except ValueError:
        return False


def worth_gathering(block: Layer, pos: Int[Tensor, "B T"], chosen: int) -> bool:
    """Return True if it is faster to gather the chosen tokens and compute a block only for them.

    block: the block to compute.
    pos: positions of all tokens, [B T].
    chosen: number of chosen tokens.

    Only blocks with `Softmax` attention are gathered, because other mechanisms may choose keys by the whole row. It is
    faster if it saves at least as many multiplications as gathering costs. The count covers products with weights,
    except those that make queries, keys and values, and pairs of a query and a key. A gathered token is computed with
    every key of its row, and a mask excludes some; in a whole row a token is computed with the keys of its pattern. The
    count depends only on sizes, so a run is reproducible.
    """
    assert isinstance(block, ResidualBlock) and isinstance(block.layers[0], Attention)
    first, mechanism, (batch, length) = block.layers[0], block.layers[0].mechanism, pos.shape
    if not isinstance(mechanism, Softmax):
        return False
    back, ahead = mechanism.pattern.reach()
    keys = min(back + ahead + 1, length / 2 if ahead <= 0 else length)
    weights = sum(p.numel() for p in block.parameters()) - sum(p.numel() for p in first.projection.parameters())
    pair = first.sizes.heads * (first.sizes.k_dim + first.sizes.v_dim)
    return batch * length * (weights + keys * pair) - chosen * (weights + length * pair) >= GATHERING


def has_no_hooks(block: ResidualBlock) -> bool:
    """Return True if no module of the block whose call `read_tokens` skips has a hook.

    `read_tokens` calls the parts of these modules directly, so their hooks would not run.

    block: the block to test.
    """
    parts = [block, *(layer for layer in block.layers if isinstance(layer, Attention))]
    return not any(has_hooks(part) or has_hooks(getattr(part, "mechanism", part)) for part in parts)


def read_tokens(
    block: ResidualBlock,
    x: Float[Tensor, "1 n D"],
    tokens: SelectedTokens,
    keys: MakeKeys,
    state: State | None,
    ctx: Context,
) -> Out:
    """Compute a block only for the chosen tokens, which read the keys and values that `keys` makes.

    block: the block, for which `serves_tokens` is True.
    x: inputs of the chosen tokens, [1 n D].
    tokens: the chosen tokens. With a state, `tokens.rows` must contain all rows, since the state is updated for all of
        them.
    keys: function that returns the keys and values for an attention sublayer; None if the state has them.
    state: state of the block.
    ctx: context of the whole batch.

    Returns: the `Out` of the chosen tokens; its y is [1 n D], its aux values per token are [1 n].
    """
    flat = ctx.replace(
        pos=tokens.pos,
        gathered=True,
        run=False,
        only=None,
        also=None,
        source=None,
        source_pos=None,
        labels={},
        below={},
        memo=empty_memo(),
    )
    collected = Collected(flat, state)
    for n, (layer, join, norm) in enumerate(zip(block.layers, block.joins, block.norms, strict=True)):

        def sublayer(z: Tensor, n: int = n, layer: Layer = layer) -> Out:
            if not isinstance(layer, Attention):
                return collected.call(n, layer, z)
            out = _attention(layer, z, tokens, keys(layer), None if state is None else state[n], ctx)
            collected.skip(out.state)
            return out

        x = join(x, sublayer, norm).y
    return collected.make_out(x)


def put_back(value: Tensor, tokens: SelectedTokens, ctx: Context) -> Tensor:
    """Spread values of chosen tokens over all tokens, 0 elsewhere; scalar penalties [] stay unchanged.

    value: values of the chosen tokens, [1 n].
    tokens: the chosen tokens.
    ctx: context of the whole batch.
    """
    if not value.dim():
        return value
    return value.new_zeros(ctx.pos.numel()).index_copy(0, tokens.at, value[0]).view(ctx.pos.shape)


def source_keys(attention: Attention, ctx: Context) -> Keys | None:
    """Return the keys and values for cross-attention to `ctx.source`; None without a source.

    attention: the cross-attention that projects them.
    ctx: context with the source.
    """
    if ctx.source is None:
        return None
    pos = ctx.source_by_head
    return attention.projection.keys(ctx.source, pos[:, 0])._replace(pos=pos, own=False)


def input_of(join: Join, norm: nn.Module, x: Tensor) -> Tensor:
    """Return the input of a sublayer: norm(x) before a `PreNormJoin`, x before a `NormLast`.

    join: the module that adds the sublayer's output to the residual stream, such as `PreNormJoin`.
    norm: the norm of the sublayer.
    x: input of the join.
    """
    return norm(x) if isinstance(join, PreNormJoin) else x


def _attention(
    layer: Attention,
    z: Float[Tensor, "1 n D"],
    tokens: SelectedTokens,
    keys: Keys | None,
    state: State | None,
    ctx: Context,
) -> Out:
    mechanism, sizes = layer.mechanism, layer.sizes
    assert isinstance(mechanism, Softmax)
    q, read = layer.projection.queries(z, tokens.pos).q[0], []  # [H n K]
    # a request without real queries, which narrows the pattern and writes the cache
    nobody = Queries(q.new_zeros(()).expand(*ctx.pos.shape, sizes.heads, sizes.k_dim).transpose(1, 2), ctx.by_head)
    request, new_state = mechanism.prepare_request(nobody, keys, state, ctx)
    for group in tokens.groups:
        queries = Queries(q[:, group.slots].transpose(0, 1), group.pos)
        group_keys = _of_rows(request.keys, group.rows if layer.cross else group.keys, tokens.memo)
        part = request.regroup(queries=queries, keys=group_keys, rows=group.rows, memo=tokens.memo)
        read.append(mechanism.read_with_aux(part).y.y.transpose(1, 2).flatten(0, 1))  # [R*M H V]
    y = torch.cat(read)[tokens.order] if read else q.new_zeros(0, sizes.heads, sizes.v_dim)
    return Out(layer.aggregation(y.transpose(0, 1)[None], tokens.pos), new_state)


def _of_rows(keys: Keys, rows: Int[Tensor, " R"], memo: Memo) -> Keys:
    """Return the keys of the given rows; the same object if the rows are all rows."""
    if len(rows) == len(keys.pos):
        return keys
    pos = memo.get(lambda: keys.pos[rows], "keys of rows", keys.pos, rows)
    return keys._replace(k=keys.k.index_select(0, rows), v=keys.v.index_select(0, rows), pos=pos)
