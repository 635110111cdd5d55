"""ConvolvedScores: attention whose scores come from a convolution over scores, and its state of rows."""

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
    """A cache, and what was convolved of the last queries.

    Row r is that of the query at position now - rows + r, its columns are the keys at `pos`.
    """

    kv: KV
    scores: Float[Tensor, "B H R C"]
    pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]

    @property
    def q_pos(self) -> Int[Tensor, "B R"]:
        """The positions of its queries, below 0 where there was none."""
        return self.now[:, None] + torch.arange(-self.scores.shape[2], 0, device=self.now.device)


class ConvolvedScores(KeyValueMechanism):
    """What mechanisms share that convolve scores: the matrix, its convolution by position, and what decoding keeps.

    A subclass says in `inputs` what is convolved and in `combine_scores` what becomes of it. Scores are handed up.
    """

    received_attention = Mechanism.received_attention  # a row of weights takes the scores of other queries
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
        """What is convolved of the layer's own scores and those from beneath; None for nothing."""

    @abstractmethod
    def combine_scores(
        self, scores: Float[Tensor, "B H T S"], inputs: Float[Tensor, "B H T S"], convolved: Float[Tensor, "B H T S"]
    ) -> Float[Tensor, "B H T S"]:
        """The layer's scores."""

    def start(self, spec: StateSpec, sizes: HeadSizes) -> ConvolvedScoresState:  # type: ignore[override]
        if sizes.cross and self.convolution.of_queries[-1] > 0:
            raise NoState(
                "a centred kernel reads scores of later queries, so it cannot be decoded across sequences; "
                "use kernel='cross', or generate(..., recompute=True)"
            )
        kv = super().start(spec, sizes)
        shape = spec.batch, sizes.heads, self.convolution.lookback, kv.pos.shape[1]
        return ConvolvedScoresState(kv, torch.zeros(shape, dtype=spec.dtype, device=spec.device), kv.pos, kv.now)

    def forward(  # type: ignore[override]
        self, queries: Queries, keys: Keys | None, state: ConvolvedScoresState | None, ctx: Context
    ) -> Out[AttentionOutput]:
        if (keys is None or not keys.own) and (ctx.only is not None or ctx.also is not None):
            raise ValueError(
                "scores of a source are convolved over all queries, so what a batch says of its own pairs (ctx.only, "
                "ctx.also) cannot be kept; give each document a row of its own"
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
        """What is read, and the rows that were convolved: earlier ones, and those of the request."""
        own_scores = self.score(request)
        scores, rows = own_scores, None
        inputs = self.inputs(own_scores, of_pairs("scores", request))
        if inputs is not None:
            out = inputs == -torch.inf  # a bias beneath shut it out
            inputs, allowed = inputs.masked_fill(out, 0.0), mask(request)
            allowed_inputs = inputs if allowed is None else inputs.masked_fill(~allowed, 0.0)
            rows = _append_rows(state, PerPair(allowed_inputs, request.queries.pos, request.keys.pos))
            convolved = self.convolution(rows.scores, rows.q_pos, request)
            scores = self.combine_scores(own_scores, inputs, convolved).masked_fill(out, -torch.inf)
        up = {"scores": PerPair(scores, request.queries.pos, request.keys.pos)}
        return Out(read_whole(scores, request)[0], up=up), rows


def _append_rows(state: ConvolvedScoresState | None, new: PerPair) -> PerPair:
    """Rows of a state, their columns those of the new ones, and the new ones behind."""
    if state is None:
        return new
    old = take_at(state.scores.to(new.scores.dtype), find_columns(state.pos, new.k_pos[:, 0]), 3)
    q_pos = torch.cat([state.q_pos[:, None], new.q_pos], 2)
    return PerPair(torch.cat([old, new.scores], 2), q_pos, new.k_pos)


def _next_state(state: ConvolvedScoresState, cache: KV, rows: PerPair | None, request: Request) -> ConvolvedScoresState:
    """The state after a call: the last rows of all, of keys that the cache keeps."""
    if rows is None:
        return state._replace(kv=cache)
    now = torch.maximum(state.now, rows.q_pos[:, 0].amax(1) + 1)
    after = state._replace(kv=cache, pos=cache.pos, now=now)
    last = take_at(rows.scores, find_columns(rows.q_pos[:, 0], after.q_pos), 2)
    columns = take_at(last, find_columns(rows.k_pos[:, 0], cache.pos), 3)
    return after._replace(scores=columns.to(state.scores.dtype))
