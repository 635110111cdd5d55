"""Delayed: linear attention that leaves out the most recent keys."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.checks import check_at_least, check_part
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context, Out, State
from kinformer.core.mechanism import Mechanism
from kinformer.nn.mechanisms.linear import LinearAttention


class DelayedState(NamedTuple):
    """Decoding state of `Delayed`: recent keys not yet in the sums, and the linear attention's state.

    k, v: keys and values of the last N tokens, [B, G, N, K] and [B, G, N, V].
    pos: positions of these tokens, [B, N]; -1 for an empty place.
    extras: extra projections of these tokens by name.
    body: state of the linear attention.
    """

    k: Float[Tensor, "B G N K"]
    v: Float[Tensor, "B G N V"]
    pos: Int[Tensor, "B N"]
    extras: dict[str, Float[Tensor, "B G N n"]]
    body: State


class Delayed(Mechanism):
    """Linear attention in which a query reads only the keys that lie at least `by` tokens back.

    y_i = sum_(j <= i - by) phi(q_i).phi(k_j) v_j / sum_(j <= i - by) phi(q_i).phi(k_j), with j >= sinks

    Choose it as the far part of `Merged`, with a near part that reads the last `by` keys exactly. Together they read
    every key once. Do not use it by itself, because it cannot see recent tokens. The decoding state holds each token
    for `by` steps before the token enters the sums. The cost is the same as for `linear`.

    linear: linear attention that reads the keys, such as `LinearAttention(FAVOR(64, 128))`.
    by: number of recent keys that a query leaves out, its own key included; at least 1.
    sinks: number of first keys, at positions below it, that every query leaves out. Choose it if the near part reads
        `Tokens(sinks)` exactly, as trained models need (attention sinks, Xiao et al., 2023, arXiv:2309.17453).

    Errors: as in `LinearAttention`.

    Source: no paper; the far field of `Merged`.
    """

    def __init__(self, linear: LinearAttention, by: int, *, sinks: int = 0):
        super().__init__()
        self.linear = check_part("linear", linear, LinearAttention, "linear attention, such as LinearAttention(ELU())")
        self.by, self.sinks = check_at_least("by", by, 1), check_at_least("sinks", sinks, 0)

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return self.linear.key_extras(sizes)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> DelayedState:
        body = self.linear.start(spec, sizes)

        def zeros(width: int) -> Tensor:
            return torch.zeros(spec.batch, sizes.key_heads, self.by, width, dtype=spec.dtype, device=spec.device)

        pos = torch.full((spec.batch, self.by), -1, device=spec.device)
        extras = {name: zeros(side.width) for name, side in self.key_extras(sizes).items()}
        return DelayedState(zeros(sizes.k_dim), zeros(sizes.v_dim), pos, extras, body)

    def forward(
        self, queries: Queries, keys: Keys | None, state: DelayedState | None, ctx: Context
    ) -> Out[AttentionOutput]:
        keys = self.linear.check_keys(queries, keys, ctx)
        keys = Keys(keys.k, keys.v, keys.pos[:, :1], keys.extras)
        late, waiting = self._advance(_append(self._empty_state(keys) if state is None else state, keys), ctx)
        if self.sinks:
            late = late._replace(pos=torch.where(late.pos < self.sinks, -1, late.pos))
        out = self.linear(queries, late, None if state is None else state.body, ctx)
        return out if state is None else out._replace(state=_next_state(waiting, state, out.state))

    def _empty_state(self, keys: Keys) -> DelayedState:
        """Return the state before the first token."""

        def zeros(x: Tensor) -> Tensor:
            return x.new_zeros(*x.shape[:2], self.by, x.shape[3])

        pos = keys.pos.new_full((len(keys.pos), self.by), -1)
        return DelayedState(
            zeros(keys.k), zeros(keys.v), pos, {name: zeros(side) for name, side in keys.extras.items()}, None
        )

    def _advance(self, keys: Keys, ctx: Context) -> tuple[Keys, Keys]:
        """Return the keys that enter the sums with each query, and the keys that wait after the call."""
        length = ctx.pos.shape[1]
        if ctx.full:
            return keys.cut(slice(0, length)), keys.cut(slice(length, None))
        real = ctx.pos >= 0
        count = real.cumsum(1)
        skip = (count == 0).sum(1, keepdim=True)  # padding between the held keys and the row's first token
        waiting = torch.arange(self.by, device=real.device) + real.sum(1, keepdim=True)
        late, waiting = (at + skip * (at >= self.by) for at in ((count - 1).clamp_min(0), waiting))
        entering = keys.cut(late)
        # padding does not count as a step: a key due at padding enters with the next token
        return entering._replace(pos=torch.where(real[:, None], entering.pos, -1)), keys.cut(waiting)


def _append(waiting: DelayedState, keys: Keys) -> Keys:
    """Append new keys to the waiting keys, in the dtype of the new keys."""

    def join(old: Tensor, new: Tensor) -> Tensor:
        return torch.cat([old.to(new.dtype), new], 2)

    extras = {name: join(waiting.extras[name], side) for name, side in keys.extras.items()}
    return Keys(join(waiting.k, keys.k), join(waiting.v, keys.v), join(waiting.pos[:, None], keys.pos), extras)


def _next_state(keys: Keys, old: DelayedState, body: State) -> DelayedState:
    """Return a state of these keys in the dtype of the old state."""
    extras = {name: side.to(old.k.dtype) for name, side in keys.extras.items()}
    return DelayedState(keys.k.to(old.k.dtype), keys.v.to(old.v.dtype), keys.pos[:, 0], extras, body)


def _favor() -> Delayed:
    return Delayed(LinearAttention(kf.FAVOR(8, 12), piece=4), 2)


def _gated() -> Delayed:
    return Delayed(LinearAttention(kf.ELU(), kf.GatedUpdate(), piece=4), 3)


def _without_sinks() -> Delayed:
    return Delayed(LinearAttention(kf.Hedgehog(2, 8), piece=4), 2, sinks=3)


EXAMPLES = (_favor, _gated, _without_sinks)
