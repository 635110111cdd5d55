"""ConvolvedScores: base class of attention that convolves its scores, and its state for decoding."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.checks import check_probability, check_scale
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.kv_cache import KV
from kinformer.core.layer import Context, Out, PerPair, Want
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.request import Request
from kinformer.core.score_matrix import mask
from kinformer.nn.mechanisms.columns_by_position import find_columns, take_at
from kinformer.nn.mechanisms.read_whole_matrix import read_whole
from kinformer.nn.mechanisms.score_convolution import Kernel, ScoreConvolution
from kinformer.nn.scores.lower_scores import of_pairs


class ConvolvedScoresState(NamedTuple):
    """Decoding state of `ConvolvedScores`: key-value cache and convolution inputs of the last queries.

    kv: cache of keys and values.
    scores: inputs of the convolution for the last R queries, [B, H, R, C]. Row r belongs to the query at position now -
        R + r, column c to the key at pos[c].
    pos: positions of the keys of `scores`, [B, C].
    now: position of the next query, [B].
    """

    kv: KV
    scores: Float[Tensor, "B H R C"]
    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]

    @property
    def q_pos(self) -> Int[Tensor, "B R"]:
        """Positions of the queries of `scores`, [B, R]; negative for rows before the first query."""
        return self.now[:, None] + torch.arange(-self.scores.shape[2], 0, device=self.now.device)


class ConvolvedScores(KeyValueMechanism):
    """Base class of mechanisms that convolve the matrix of scores.

    It computes the scores, convolves them by position, and keeps the rows of earlier queries that decoding needs. It
    passes its scores to the next block (`Out.up`). A subclass defines `inputs`, which returns the tensor to convolve,
    and `combine_scores`, which makes the layer's scores from the result.

    pattern: keys that each query may read.
    heads: number of heads of the layer.
    size, kernel, slope: size, form and activation of the convolution, as in `ScoreConvolution`.
    scale: factor of the dot product; 1/sqrt(head_dim) if None.
    dropout: fraction of attention weights that training drops.

    Errors: NoState (no decoding state exists) from `start` if the pattern allows later keys, or for a centred kernel in
    cross-attention; ValueError for `ctx.only` or `ctx.also` in cross-attention.
    """

    received_attention = Mechanism.received_attention  # the weights of a query depend on the scores of other queries
    wants = (Want("scores", optional=True),)
    sends = frozenset({"scores"})
    needs_queries = True

    def __init__(
        self,
        pattern: Pattern,
        heads: int,
        *,
        size: int,
        kernel: Kernel,
        slope: float,
        scale: float | None,
        dropout: float,
    ):
        super().__init__()
        self.pattern, self.dropout = check_pattern("pattern", pattern), check_probability("dropout", dropout)
        self.scale, self.convolution = check_scale(scale), ScoreConvolution(heads, size, kernel, slope)

    @abstractmethod
    def inputs(
        self, scores: Float[Tensor, "B H T S"], previous: Float[Tensor, "B H T S"] | None
    ) -> Float[Tensor, "B H T S"] | None:
        """Return the tensor to convolve, or None to convolve nothing; a subclass supplies it.

        scores: the layer's own scores.
        previous: scores from the block below, or None.
        """

    @abstractmethod
    def combine_scores(
        self, scores: Float[Tensor, "B H T S"], inputs: Float[Tensor, "B H T S"], convolved: Float[Tensor, "B H T S"]
    ) -> Float[Tensor, "B H T S"]:
        """Return the scores of the layer from the result of the convolution; a subclass supplies it.

        scores: the layer's own scores.
        inputs: the tensor that was convolved.
        convolved: the result of the convolution.
        """

    def start(self, spec: StateSpec, sizes: HeadSizes) -> ConvolvedScoresState:  # type: ignore[override]
        if sizes.cross and self.convolution.of_queries[-1] > 0:
            raise NoState(
                "a centred kernel reads scores of later queries, so cross-attention cannot be decoded with a "
                "cache. Use kernel='cross', or generate(..., recompute=True)"
            )
        kv = super().start(spec, sizes)
        shape = spec.batch, sizes.heads, self.convolution.lookback, kv.pos.shape[1]
        return ConvolvedScoresState(kv, torch.zeros(shape, dtype=spec.dtype, device=spec.device), kv.pos, kv.now)

    def forward(  # type: ignore[override]
        self, queries: Queries, keys: Keys | None, state: ConvolvedScoresState | None, ctx: Context
    ) -> Out[AttentionOutput]:
        if (keys is None or not keys.own) and (ctx.only is not None or ctx.also is not None):
            raise ValueError(
                "ctx.only and ctx.also cannot be used with a source: its scores are convolved over all queries, "
                "across the borders of documents. Put each document into a row of its own"
            )
        request, cache = self.prepare_request(queries, keys, None if state is None else state.kv, ctx)
        out, rows = self._read(request, state)
        if state is None or cache is None:
            return out
        return out._replace(state=_next_state(state, cache, rows, request))

    def read(self, request: Request) -> Out[AttentionOutput]:
        return self._read(request, None)[0]

    def _read(
        self, request: Request, state: ConvolvedScoresState | None
    ) -> tuple[Out[AttentionOutput], PerPair | None]:
        """Return the output and the convolved rows: the rows of the state followed by the new ones."""
        own_scores = self.score(request)
        scores, rows = own_scores, None
        inputs = self.inputs(own_scores, of_pairs("scores", request))
        if inputs is not None:
            out = inputs == -torch.inf  # a bias in the block below excluded this pair
            inputs, allowed = inputs.masked_fill(out, 0.0), mask(request)
            allowed_inputs = inputs if allowed is None else inputs.masked_fill(~allowed, 0.0)
            rows = _append_rows(state, PerPair(allowed_inputs, request.queries.pos, request.keys.pos))
            convolved = self.convolution(rows.scores, rows.q_pos, request)
            scores = self.combine_scores(own_scores, inputs, convolved).masked_fill(out, -torch.inf)
        up = {"scores": PerPair(scores, request.queries.pos, request.keys.pos)}
        return Out(read_whole(scores, request)[0], up=up), rows


def _append_rows(state: ConvolvedScoresState | None, new: PerPair) -> PerPair:
    """Reorder the rows of a state to the keys of the new rows, and append the new rows."""
    if state is None:
        return new
    old = take_at(state.scores.to(new.scores.dtype), find_columns(state.pos, new.k_pos[:, 0]), 3)
    q_pos = torch.cat([state.q_pos[:, None], new.q_pos], 2)
    return PerPair(torch.cat([old, new.scores], 2), q_pos, new.k_pos)


def _next_state(state: ConvolvedScoresState, cache: KV, rows: PerPair | None, request: Request) -> ConvolvedScoresState:
    """Return the state after a call: the last rows, for the keys that the cache keeps."""
    if rows is None:
        return state._replace(kv=cache)
    now = torch.maximum(state.now, rows.q_pos[:, 0].amax(1) + 1)
    after = state._replace(kv=cache, pos=cache.pos, now=now)
    last = take_at(rows.scores, find_columns(rows.q_pos[:, 0], after.q_pos), 2)
    columns = take_at(last, find_columns(rows.k_pos[:, 0], cache.pos), 3)
    return after._replace(scores=columns.to(state.scores.dtype))
