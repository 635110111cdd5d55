"""LinearAttention: causal attention through feature maps, with a decoding state of fixed size."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import disable_autocast
from kinformer.core.checks import check_at_least, check_part
from kinformer.core.choice import run_checkpointed
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.feature_map import FeatureMap
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.state import UncastState
from kinformer.core.token_positions import check_in_order
from kinformer.nn.mechanisms.linear_features import (
    check_heads,
    check_limits,
    divide_by_weights,
    empty_state,
    key_features,
    precision,
    query_features,
)
from kinformer.nn.mechanisms.state_update import DecayUpdate, LinearState, StateUpdate, apply_in_pieces

CROSS = (
    "LinearAttention sums one sequence in its order, but got keys of another sequence. Use "
    "FullLinearAttention(map) for cross-attention"
)
NUMBERS = 1 << 20  # maximum number of query features in a chunk
WHOLE = 8  # up to this many chunks are computed at once and kept for the backward pass


class AdditiveUpdate(DecayUpdate):
    """State update of linear attention that adds each token with equal weight and forgets nothing.

    S_t = S_(t-1) + phi(k_t) v_t^T

    `LinearAttention` uses it by default.

    Source: Katharopoulos et al., 2020, arXiv:2006.16236, equations 18 and 19.
    """

    def logs(
        self, k: Float[Tensor, "B G N P F"], extras: Mapping[str, Float[Tensor, "B G N P n"]]
    ) -> tuple[Float[Tensor, "B G N P"], Float[Tensor, "B G N P"]]:
        zeros = k.new_zeros(k.shape[:-1])
        return zeros, zeros


class GatedUpdate(DecayUpdate):
    """State update of linear attention with a learned gate between the past and the new token.

    S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T, g_t = sigmoid(w.x_t + b)

    Choose it if recent tokens matter more. Each key head has its own gate g_t, made by an extra key projection of the
    layer.

    Source: Peng et al., 2021, arXiv:2103.02143, section 3.2.
    """

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {"gate": ExtraProjection(1)}

    def logs(
        self, k: Float[Tensor, "B G N P F"], extras: Mapping[str, Float[Tensor, "B G N P n"]]
    ) -> tuple[Float[Tensor, "B G N P"], Float[Tensor, "B G N P"]]:
        gate = extras["gate"][..., 0].to(k.dtype)
        return F.logsigmoid(gate), F.logsigmoid(-gate)


class LinearAttention(Mechanism):
    """Causal attention with weights phi(q).phi(k), which needs constant time and memory per token.

    y_i = sum_(j <= i) phi(q_i).phi(k_j) v_j / sum_(j <= i) phi(q_i).phi(k_j)

    Choose it for long text and cheap decoding. Choose `FullLinearAttention` for encoders and cross-attention. It treats
    the order of the array as time, so it needs `ctx.run` (the promise of consecutive positions), which every model
    sets. The decoding state is kept in float32 or wider. The lse is the log of the sum of the weights, and None for
    feature maps with negative values.

    map: feature map phi, such as `ELU()`.
    update: rule for adding a token to the sums; `AdditiveUpdate()` by default. `GatedUpdate()` lets the past decay,
        and `DeltaUpdate()` replaces old values.
    piece: number of tokens in a piece, a run of consecutive tokens. Each token is multiplied with the tokens of its
        piece, and the backward pass keeps the sums before each piece. Small pieces mean fewer pairs of tokens and more
        stored sums. 64 was fastest on CPU, with 64 features and with 256.

    Errors: ValueError without `ctx.run`, with `ctx.only` or `ctx.also` (sums cannot leave out keys), and for
    cross-attention, when the layer is built.

    Source: Katharopoulos et al., 2020, arXiv:2006.16236, section 3.4; gated sums and random features: Peng et al.,
    2021, arXiv:2103.02143.
    """

    def __init__(self, map: FeatureMap, update: StateUpdate | None = None, *, piece: int = 64):
        super().__init__()
        self.map = check_part("map", map, FeatureMap, "a feature map, such as ELU()")
        self.update = (
            AdditiveUpdate()
            if update is None
            else check_part("update", update, StateUpdate, "an update, such as AdditiveUpdate()")
        )
        self.piece = check_at_least("piece", piece, 1)

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        if sizes.cross:  # a layer calls this when it is built, so the error is raised there
            raise ValueError(CROSS)
        check_heads(sizes)
        return self.update.key_extras(sizes)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> UncastState:
        if sizes.cross:
            raise NoState(CROSS)
        return UncastState(empty_state(spec, sizes, self.map.features(sizes.k_dim)))

    def check_keys(self, queries: Queries, keys: Keys | None, ctx: Context) -> Keys:
        """Return the keys if each token has a query and a key.

        Errors: ValueError for keys of another sequence or number, for `ctx.only` and `ctx.also`, and without `ctx.run`
        (the promise of consecutive positions).
        """
        if keys is None or not keys.own:
            raise ValueError(CROSS)
        if keys.k.shape[2] != queries.q.shape[2]:
            raise ValueError(
                f"LinearAttention needs one key per query: got {queries.q.shape[2]} queries and {keys.k.shape[2]} keys"
            )
        check_limits(ctx)
        check_in_order(ctx, "LinearAttention", ", or use FullLinearAttention")
        return keys

    def forward(
        self, queries: Queries, keys: Keys | None, state: UncastState | None, ctx: Context
    ) -> Out[AttentionOutput]:
        keys = self.check_keys(queries, keys, ctx)
        with disable_autocast(keys.k):
            old = None if state is None else state.inside
            dtype = precision(keys.k, old)
            sums = _empty_state(self.map, keys, dtype) if old is None else _cast_sums(old, dtype)
            chunks = self._chunks(queries, keys)
            recompute = len(chunks) > 1 and torch.is_grad_enabled()
            reads = []
            for chunk in chunks:
                read, sums = (run_checkpointed if recompute else _call_chunk)(self._chunk, *chunk, sums, ctx.remember)
                reads.append(read)
            return Out(_concatenate(reads), None if old is None else UncastState(_cast_sums(sums, old.s.dtype)))

    def _chunks(self, queries: Queries, keys: Keys) -> list[tuple[Queries, Keys]]:
        """Split a long row into chunks with few features, because allocating new memory costs more than the arithmetic.

        The backward pass computes the chunks again for the same reason.
        """
        if torch.compiler.is_exporting():
            return [(queries, keys)]
        batch, heads, length, width = queries.q.shape
        size = NUMBERS // max(1, batch * heads * self.map.features(width))
        size = max(size - size % self.piece, self.piece)
        if not self.map.by_vector or length <= WHOLE * size:
            return [(queries, keys)]
        sizes = [min(size, length - begin) for begin in range(0, length, size)]

        def split(x: Tensor) -> tuple[Tensor, ...]:
            return x.split(sizes, 2)  # one split, because the gradient of a slice is as long as the row

        extras = {name: split(side) for name, side in keys.extras.items()}
        of = [{name: side[n] for name, side in extras.items()} for n in range(len(sizes))]
        q = [Queries(*fields) for fields in zip(split(queries.q), split(queries.pos), strict=True)]
        k = [Keys(*fields) for fields in zip(split(keys.k), split(keys.v), split(keys.pos), of, strict=True)]
        return list(zip(q, k, strict=True))

    def _chunk(
        self, queries: Queries, keys: Keys, sums: LinearState, remember: bool
    ) -> tuple[AttentionOutput, LinearState]:
        """Return the read of the queries of a chunk, and the sums after it."""
        dtype = sums.s.dtype
        new = key_features(self.map, keys, queries.pos[:, :1] >= 0, dtype)
        q, constant = (None, None) if remember else query_features(self.map, queries, keys.k.shape[1], dtype)
        read, level, sums = apply_in_pieces(self.update, sums, q, new, self.piece, self.map.levels)
        if read is None or constant is None:
            return AttentionOutput(queries.q[..., :0], None), sums
        return divide_by_weights(self.map, read, None if level is None else level[:, :, None] + constant, queries), sums


def _call_chunk(
    chunk: Callable[..., tuple[AttentionOutput, LinearState]], *inputs: Any
) -> tuple[AttentionOutput, LinearState]:
    return chunk(*inputs)


def _concatenate(reads: list[AttentionOutput]) -> AttentionOutput:
    """Join the reads of the chunks of a row."""
    if len(reads) == 1:
        return reads[0]
    y, lse = zip(*reads, strict=True)
    return AttentionOutput(torch.cat(y, 2), None if lse[0] is None else torch.cat(lse, 2))


def _empty_state(map: FeatureMap, keys: Keys, dtype: torch.dtype) -> LinearState:
    shape = *keys.k.shape[:2], map.features(keys.k.shape[3]), keys.v.shape[3] + 1
    s = keys.k.new_zeros(shape, dtype=dtype)
    return LinearState(s, s.new_full(s.shape[:2], -torch.inf))


def _cast_sums(sums: LinearState, dtype: torch.dtype) -> LinearState:
    return LinearState(sums.s.to(dtype), sums.level.to(dtype))


def _elu() -> LinearAttention:
    return LinearAttention(kf.ELU())


def _gated() -> LinearAttention:
    return LinearAttention(kf.ELU(), GatedUpdate(), piece=4)


def _signed() -> LinearAttention:
    return LinearAttention(kf.RandomFourier(2, 8, 64))


NO_LSE = {"merge": "sums of products of sines and cosines can be negative, so they are clamped and have no logarithm"}
EXAMPLES = (_elu, _gated, Example(_signed, breaks=NO_LSE))
