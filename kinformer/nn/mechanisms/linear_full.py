"""FullLinearAttention: linear attention over every key, for encoders and cross-attention."""

from collections.abc import Mapping

import torch

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import disable_autocast
from kinformer.core.checks import check_part
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.feature_map import FeatureMap
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.state import UncastState
from kinformer.nn.mechanisms.linear_features import (
    check_heads,
    check_limits,
    divide_by_weights,
    empty_state,
    key_features,
    precision,
    query_features,
)
from kinformer.nn.mechanisms.state_update import LinearState


class FullLinearAttention(Mechanism):
    """Linear attention over every key, for encoders and cross-attention: weights phi(q).phi(k).

    y_i = sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j)

    Choose `LinearAttention` for decoders. Positions do not matter, but padding is left out. Cross-attention can be
    decoded: its decoding state holds the sums over the source.

    map: feature map phi, such as `ELU()`.

    Errors: NoState (no decoding state exists) from `start` in self-attention; ValueError in self-attention with
    `ctx.only` or `ctx.also`, and if key heads and value heads differ in number.

    Source: Katharopoulos et al., 2020, arXiv:2006.16236, equation 5.
    """

    def __init__(self, map: FeatureMap):
        super().__init__()
        self.map = check_part("map", map, FeatureMap, "a feature map, such as ELU()")

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        check_heads(sizes)  # a layer calls this when it is built, so the error is raised there
        return {}

    def start(self, spec: StateSpec, sizes: HeadSizes) -> UncastState:
        if not sizes.cross:
            raise _no_state()
        return UncastState(empty_state(spec, sizes, 0))

    def forward(
        self, queries: Queries, keys: Keys | None, state: UncastState | None, ctx: Context
    ) -> Out[AttentionOutput]:
        if keys is not None and keys.own:
            check_limits(ctx)  # ctx.only and ctx.also apply to a batch's own pairs, not to a source
            if state is not None:
                raise _no_state()
        with disable_autocast(queries.q):
            if keys is not None:
                sums = _sum_keys(self.map, keys, precision(keys.k, None if state is None else state.inside))
            elif state is None or not state.inside.s.shape[2]:
                raise ValueError(
                    "cross-attention got no source. Pass Context(source=..., source_pos=...) in the first call"
                )
            else:
                sums = state.inside
            new_state = None if state is None else UncastState(sums)
            if ctx.remember:
                return Out(AttentionOutput(queries.q[..., :0], None), new_state)
            q, constant = query_features(self.map, queries, sums.s.shape[1], sums.s.dtype)
            read = (q.flatten(2, 3) @ sums.s).unflatten(2, q.shape[2:4])  # [B G R T W]
            return Out(divide_by_weights(self.map, read, sums.level[..., None, None] + constant, queries), new_state)


def _sum_keys(map: FeatureMap, keys: Keys, dtype: torch.dtype) -> LinearState:
    """Return the sums over all keys."""
    new = key_features(map, keys, keys.pos[:, :1] >= 0, dtype)
    if not map.levels or not new.k.shape[2]:
        level = new.weight.new_zeros(new.weight.shape[:2])
    else:
        level = new.weight.detach().amax(-1)
        level = torch.where(level == -torch.inf, 0.0, level)
    weight = (new.weight - level[..., None]).exp()  # multiplies values, because they are narrower than features
    return LinearState(new.k.mT @ (new.v * weight[..., None]), level)  # [B G F S] [B G S W]


def _no_state() -> NoState:
    return NoState(
        "FullLinearAttention reads the whole sequence at once and has no state. Use LinearAttention(map), or "
        "generate(..., recompute=True)"
    )


def _elu() -> FullLinearAttention:
    return FullLinearAttention(kf.ELU())


def _signed() -> FullLinearAttention:
    return FullLinearAttention(kf.RandomFourier(2, 8, 64))


NO_LSE = {"merge": "sums of products of sines and cosines can be negative, so they are clamped and have no logarithm"}
EXAMPLES = (_elu, Example(_signed, breaks=NO_LSE))
