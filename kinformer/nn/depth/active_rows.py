"""Active rows: a layer, or an exit rule, computed only for rows with a token that has not left yet."""

from collections.abc import Callable, Sequence
from typing import overload

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from kinformer.core.collected_outputs import Collected
from kinformer.core.layer import Context, Layer, Out, State
from kinformer.core.mechanism import Mechanism
from kinformer.core.memo import Memo, empty_memo
from kinformer.core.pattern import Pattern
from kinformer.core.residual_block import ResidualBlock
from kinformer.core.state import leaves, map_state
from kinformer.nn.exits.confidence import Head, States
from kinformer.nn.exits.exit_rule import ExitRule, Leaves

COPIED = 3  # cost of copying a row's cache and reading the copy, relative to reading the cache in place
Rows = Int[Tensor, " _"]


def find_active_rows(layer: nn.Module, going: Bool[Tensor, "B T"], before: Rows | None) -> Rows | None:
    """Return the rows with a token that still takes steps; None means all rows.

    The result is None in training, since processes that train together must take the same steps. It is None in compiled
    code, which cannot depend on the values of a tensor. If no row became inactive, the result is `before` itself, so
    that results cached for these rows are found again.

    layer: the layer whose rows are selected; its train mode counts.
    going: True for tokens that still take steps, [B T].
    before: the rows of the previous step; rows never become active again.
    """
    if layer.training or torch.compiler.is_compiling():
        return None
    rows = (going if going.shape[1] == 1 else going.any(1)).nonzero()[:, 0]
    if before is not None and len(before) == len(rows):
        return before
    return rows if len(rows) < len(going) else None


class _Selected(Sequence[Tensor]):
    """Some rows of each tensor, selected on access: a rule reads only one or two of all states so far."""

    def __init__(self, each: Sequence[Tensor], rows: Rows):
        self.each, self.rows = each, rows

    def __len__(self) -> int:
        return len(self.each)

    @overload
    def __getitem__(self, at: int) -> Tensor: ...
    @overload
    def __getitem__(self, at: slice) -> "_Selected": ...
    def __getitem__(self, at: int | slice) -> "Tensor | _Selected":
        if isinstance(at, slice):
            return _Selected(self.each[at], self.rows)
        return self.each[at].index_select(0, self.rows)


def leaving_tokens(
    rule: ExitRule, rows: Rows | None, states: States, ctx: Context, rule_state: State, head: Head | None
) -> Leaves:
    """Return which tokens leave the stack now by an exit rule, computed only for the given rows.

    No token of another row leaves. If the context cannot be cut to some rows (`ctx.only`, `ctx.also` or `ctx.below` is
    set), the rule considers all rows.

    rule: the exit rule.
    rows: rows with an active token; None for all.
    states, ctx, rule_state, head: as in `ExitRule`.
    """
    if rows is None or _of_all_rows(ctx):
        return rule(states, ctx, rule_state, head)
    row_states = map_state(lambda _, leaf: leaf.index_select(0, rows), rule_state)
    row_leaves = rule(_Selected(states, rows), _context(ctx, rows), row_states, head)
    return torch.zeros_like(ctx.pos, dtype=torch.bool).index_copy(0, rows, row_leaves)


def can_read_some_rows(layer: Layer) -> bool:
    """Return True if the layer can compute some rows of a batch without the others.

    The result is False if the layer passes values to the layer above (`Out.up`), or if its pattern holds a tensor for
    the whole batch.
    """
    patterns = (getattr(part, "pattern", None) for part in layer.modules() if isinstance(part, Mechanism))
    return not layer.sends and not any(isinstance(pattern, Pattern) and pattern.tensors() for pattern in patterns)


def on_rows(layer: Layer, rows: Rows | None) -> Callable[[Tensor, State | None, Context], Out]:
    """Return the layer restricted to some rows; the output of the other rows is their x.

    The decoding state of all rows is updated. If the context cannot be cut to some rows (`ctx.only`, `ctx.also` or
    `ctx.below` is set), the layer computes all rows.

    layer: the layer to restrict.
    rows: the rows to compute; None for all.
    """

    if rows is None:
        return layer

    def call(x: Tensor, state: State | None, ctx: Context) -> Out:
        if _of_all_rows(ctx):
            return layer(x, state, ctx)
        if state is not None and isinstance(layer, ResidualBlock) and COPIED * len(rows) >= len(x):
            return layer.read_apart(lambda: _by_sublayers(layer, rows, x, state, ctx))
        # these rows read a temporary copy of the state; the state itself takes the new keys of all rows in place
        rows_state = None if state is None else _state_of_rows(state, rows, ctx.memo)
        new_state = None if state is None else layer(x, state, ctx.replace(remember=True)).state
        out = layer(x[rows], rows_state, _context(ctx, rows))
        aux = {
            name: _put_rows(torch.zeros_like(x[..., 0], dtype=v.dtype), rows, v)
            for name, v in out.aux.items()
            if v.dim()
        }
        return out._replace(y=_put_rows(x, rows, out.y), state=new_state, aux={**out.aux, **aux})

    return call


def _by_sublayers(block: ResidualBlock, rows: Rows, x: Tensor, state: State, ctx: Context) -> Out:
    """Compute sublayers with a state for all rows, which copies nothing, and the others for some rows."""
    collected, row_ctx, y = Collected(ctx, state), _context(ctx, rows), x
    for n, (layer, join, norm) in enumerate(zip(block.layers, block.joins, block.norms, strict=True)):
        if leaves(state[n]):
            y = join(y, lambda z, n=n, layer=layer: collected.call(n, layer, z), norm).y
            continue
        inside = Collected(row_ctx, None)
        out = join(y[rows], lambda z, n=n, layer=layer, inside=inside: inside.call(n, layer, z), norm)
        collected.skip(state[n])
        collected.aux |= {
            name: _put_rows(torch.zeros_like(x[..., 0]), rows, v) if v.dim() else v for name, v in inside.aux.items()
        }
        y = _put_rows(y, rows, out.y)
    return collected.make_out(_put_rows(x, rows, y[rows]))


def _of_all_rows(ctx: Context) -> bool:
    """Return True if the context holds something that cannot be cut to some rows of the batch."""
    return ctx.only is not None or ctx.also is not None or bool(ctx.below)


def _context(ctx: Context, rows: Rows) -> Context:
    def select_rows(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.index_select(0, rows)

    pos, memo = ctx.memo.get(lambda: (select_rows(ctx.pos), empty_memo()), "rows", ctx.pos, rows)
    labels = {name: select_rows(label) for name, label in ctx.labels.items()}
    source, source_pos, decoding = select_rows(ctx.source), select_rows(ctx.source_pos), ctx.decoding
    if decoding is not None and len(decoding.step) > 1:
        decoding = decoding._replace(step=decoding.step.index_select(0, rows))
    return ctx.replace(
        pos=pos, full=ctx.full, memo=memo, labels=labels, source=source, source_pos=source_pos, decoding=decoding
    )


def _state_of_rows(state: State, rows: Rows, memo: Memo) -> State:
    """Return the state of some rows; layers that share positions also share the copies, and plans made from them."""

    def select(name: str, leaf: Tensor) -> Tensor:
        if name in ("pos", "now"):
            return memo.get(lambda: leaf.index_select(0, rows), "rows", leaf, rows)
        return leaf.index_select(0, rows)

    return map_state(select, state)


def _put_rows(x: Tensor, rows: Rows, values: Tensor) -> Tensor:
    return x.index_copy(0, rows, values.to(x.dtype))
