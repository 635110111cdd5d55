"""Landmarks: means of segments of a row, and base class of attention through them."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.attend import FULL, PRODUCT, read
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec, number_of_groups
from kinformer.core.layer import Context, Out, State
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.request import Request
from kinformer.core.token_positions import check_in_order


class Segments(NamedTuple):
    """Consecutive segments of the tokens of each row; the mean of a segment is a landmark.

    number: index of each token's segment, [B, S]; at padding, the number of segments.
    pos: index of each landmark, [B, 1, M]; -1 for a segment without tokens.
    even: True if all segments are known to have the same number of tokens and no padding.
    """

    number: Int[Tensor, "B S"]
    pos: Int[Tensor, "B 1 M"]
    even: bool

    @classmethod
    def split_evenly(cls, real: Bool[Tensor, "B S"], max_segments: int, full: bool = False) -> "Segments":
        """Split each row into at most `max_segments` segments of nearly equal size.

        real: False at padding, [B, S].
        max_segments: maximum number of segments.
        full: True promises that no token is padding.
        """
        count = real.sum(1, keepdim=True)
        used, max_segments = count.clamp_max(max_segments), min(max_segments, real.shape[1])
        number = (real.cumsum(1) - 1) * used // count.clamp_min(1)
        return cls._from_numbers(
            number, real, used, max_segments, full and max_segments > 0 and real.shape[1] % max_segments == 0
        )

    @classmethod
    def split_by_size(cls, real: Bool[Tensor, "B S"], size: int, full: bool = False) -> "Segments":
        """Split each row into segments of `size` tokens; the last segment may be shorter.

        real: False at padding, [B, S].
        size: number of tokens in a segment.
        full: True promises that no token is padding.
        """
        used, segments = -(-real.sum(1, keepdim=True) // size), -(-real.shape[1] // size)
        return cls._from_numbers(
            (real.cumsum(1) - 1) // size, real, used, segments, full and segments > 0 and real.shape[1] % size == 0
        )

    @classmethod
    def _from_numbers(
        cls, number: Tensor, real: Tensor, used: Int[Tensor, "B 1"], max_segments: int, even: bool
    ) -> "Segments":
        at = torch.arange(max_segments, device=real.device)
        return cls(torch.where(real, number, max_segments), torch.where(at < used, at, -1)[:, None], even)

    def means(self, x: Float[Tensor, "B G S n"]) -> Float[Tensor, "B G M n"]:
        """Return the mean of the tokens x in each segment; 0 for a segment without tokens."""
        max_segments = self.pos.shape[2]
        if self.even:
            return x.unflatten(2, (max_segments, -1)).mean(3)
        at = self.number[:, None, :, None]

        def sum_segments(x: Tensor) -> Tensor:
            total = x.new_zeros(*x.shape[:2], max_segments + 1, x.shape[3])  # the last segment collects padding
            return total.scatter_add(2, at.expand_as(x), x)[:, :, :max_segments]

        return sum_segments(x) / sum_segments(torch.ones_like(x[:, :1, :, :1])).clamp_min(1)


class ThroughLandmarks(Mechanism):
    """Base class of attention through landmarks: queries read landmarks, and landmarks read keys.

    y = F C (B V)

    No pair of tokens is scored. The landmarks Q~ and K~ are means of segments of queries and of keys, which a subclass
    defines in `segments`. The factors are F = softmax(scale Q K~^T), A = softmax(scale Q~ K~^T), B = softmax(scale Q~
    K^T), and C = `approximate_inverse(A)`, which a subclass also defines. All computations use float32 or wider,
    because C amplifies rounding errors. There is no lse (log-sum-exp of the scores).

    Errors: NoState (no decoding state exists) from `start`. ValueError for self-attention without `ctx.run`
    (consecutive positions), for cross-attention without a source, for positions by head, and with `ctx.only` or
    `ctx.also`.
    """

    scale: float | None = None

    @abstractmethod
    def segments(self, pos: Int[Tensor, "B 1 S"], ctx: Context) -> Segments:
        """Return the segments of rows, which layers with the same segments share; a subclass supplies them.

        pos: positions of the tokens, [B, 1, S].
        ctx: context of the call; its memo keeps the segments.
        """

    @abstractmethod
    def approximate_inverse(self, a: Float[Tensor, "B H M N"]) -> Float[Tensor, "B H N M"]:
        """Return the matrix C, used in place of the inverse of A; a subclass supplies it.

        a: matrix A of weights between landmarks, [B, H, M, N]; rows and columns without a landmark are 0.
        """

    def start(self, spec: StateSpec, sizes: HeadSizes) -> State:
        raise NoState(
            f"{type(self).__name__} cannot be decoded with a cache, because its landmarks are means that include "
            "later tokens. Use Softmax(Causal()), or generate(..., recompute=True)"
        )

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out[AttentionOutput]:
        self.check(keys, ctx)
        assert keys is not None
        with disable_autocast(queries.q):
            return Out(AttentionOutput(self.read(queries, keys, ctx).to(queries.q.dtype), None))

    def check(self, keys: Keys | None, ctx: Context) -> None:
        """Raise ValueError for keys or a context that this mechanism cannot read."""
        name = type(self).__name__
        if keys is None:
            raise ValueError(f"{name} does not cache a source. Pass Context(source=..., source_pos=...) in every call")
        if keys.pos.shape[1] != 1:
            raise ValueError(
                f"{name} got positions by head {list(keys.pos.shape)}. Pass keys with positions that all heads share"
            )
        if keys.own:
            check_in_order(ctx, name)
        # this also holds for a source, because queries are averaged as keys are
        if ctx.only is not None or ctx.also is not None:
            raise ValueError(
                f"ctx.only and ctx.also limit single tokens, but {name} reads means of tokens. Leave out both"
            )

    def read(self, queries: Queries, keys: Keys, ctx: Context) -> Float[Tensor, "B H T V"]:
        """Return the attention output F C (B V) of all queries, in float32 or wider."""
        query_segments, key_segments = (self.segments(pos, ctx) for pos in (queries.pos, keys.pos))
        heads = queries.q.shape[1]
        q, q_mean = at_least_float32(queries.q), query_segments.means(at_least_float32(queries.q))
        k_mean = key_segments.means(at_least_float32(keys.k)).repeat_interleave(
            number_of_groups(heads, keys.k.shape[1]), 1
        )
        landmark_values = self.attend(q_mean, query_segments.pos, keys.k, keys.v, keys.pos, ctx)
        landmark_values = self.correct_values(
            self.approximate_inverse(self._weights(q_mean, k_mean, query_segments, key_segments)) @ landmark_values,
            keys,
            key_segments,
        )
        return self.attend(q, queries.pos, k_mean, landmark_values, key_segments.pos, ctx)

    def correct_values(
        self, landmark_values: Float[Tensor, "B H N V"], keys: Keys, key_segments: Segments
    ) -> Float[Tensor, "B H N V"]:
        """Return the values C (B V) of the landmarks. A subclass may replace them by exact values."""
        return landmark_values

    def attend(
        self, q: Tensor, q_pos: Tensor, k: Tensor, v: Tensor, k_pos: Tensor, ctx: Context
    ) -> Float[Tensor, "B H T V"]:
        """Return softmax(scale q k^T) v over all keys except padding."""
        queries, keys = (
            Queries(at_least_float32(q), q_pos),
            Keys(at_least_float32(k), at_least_float32(v), k_pos, own=False),
        )
        settings = {"lse": False, "full": ctx.full, "memo": ctx.memo}
        return read(Request(queries, keys, FULL, PRODUCT, None, self._scale(q), **settings)).y  # type: ignore[arg-type]

    def _weights(
        self, q: Tensor, k: Tensor, query_segments: Segments, key_segments: Segments
    ) -> Float[Tensor, "B H M N"]:
        """Return A."""
        is_key = key_segments.pos[:, :, None] >= 0
        scores = (self._scale(q) * q @ k.mT).masked_fill(~is_key, torch.finfo(q.dtype).min)
        return scores.softmax(-1) * (is_key & (query_segments.pos[..., None] >= 0))

    def _scale(self, q: Tensor) -> float:
        return (q.shape[-1] or 1) ** -0.5 if self.scale is None else self.scale
