"""LowRankBand: narrow heads that read all keys, and wide heads that read a window."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.checks import check_at_least, check_option
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, HeadValues, Keys, Queries, StateSpec
from kinformer.core.kv_cache import KV
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern
from kinformer.core.request import Request
from kinformer.nn.mechanisms.global_softmax import split_extras
from kinformer.nn.mechanisms.softmax import Softmax

Combine = Literal["gate", "sum"]


class LowRankBandState(NamedTuple):
    """Decoding state of `LowRankBand`: key-value caches of its low-rank and its band part.

    low: narrow keys and the values of all tokens, for the low-rank part.
    band: keys and values of the window.
    """

    low: KV
    band: KV


class LowRankBand(Mechanism):
    """Attention in two parts: a low-rank part over all keys, and a full-rank part in a band.

        low_i = sum_j softmax(q'_i.k'_j / sqrt(rank)) v_j  over `far`,   q', k' of width `rank`
        band_i = sum_j softmax(q_i.k_j / sqrt(k_dim)) v_j  over `near`
        y_i = g_h low_i + (1 - g_h) band_i,  g_h = sigma(b_h), b_h learned, 0 at first

    Choose it over a plain window if distant tokens must stay visible. Choose it over `Softmax` to save cache memory if
    rough scores are enough for distant tokens. Each part has its own softmax, queries and keys. The band uses the
    layer's queries and keys; the narrow ones are extra projections. Both parts read the same values. The output has no
    lse (log-sum-exp), because a mean or sum of two softmaxes is not a softmax. Decoding keeps a cache for each part:
    the band's is no longer than its window, and the far part's holds the whole row with keys of width `rank`.

    Every pair has a narrow score. PyTorch's fused kernel needs queries as wide as values, so narrow queries are padded
    with zeros. A layer therefore takes the time of full attention plus the window, and no memory for a matrix of
    pairs.

    heads: number of query heads of the layer.
    near: keys that the wide heads read, such as `Causal() & Band(16)`.
    far: keys that the narrow heads read, `Causal()` or `Full()`.
    rank: width of narrow queries and keys, often a quarter of the width of the layer's keys.
    combine: "gate" for the equation above, or "sum" for low_i + band_i.
    dropout: fraction of attention weights that training drops.

    Errors: ValueError for a layer with another number of heads; NoState (no decoding state exists) from `start` if a
    pattern allows later keys.

    Source: Guo et al., 2019, doi:10.1109/TASLP.2019.2944078, Low-Rank and Locality Constrained Self-Attention for
    Sequence Modeling, IEEE/ACM TASLP 27(12).

    Differences: the combination of the parts and their separate softmaxes are this library's reading of the paper; its
    text was not available when this was written.
    """

    def __init__(
        self, heads: int, near: Pattern, far: Pattern, rank: int = 8, *, combine: Combine = "gate", dropout: float = 0.0
    ):
        super().__init__()
        self.heads, self.rank = check_at_least("heads", heads, 1), check_at_least("rank", rank, 1)
        self.band = Softmax(near, dropout=dropout, lse=False)
        self.low = _Narrow(far, dropout=dropout, lse=False)
        gated = check_option("combine", combine, Combine) == "gate"
        self.gate = nn.Parameter(torch.zeros(heads)) if gated else None

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        self._check_heads(sizes.heads)
        return {"low_q": ExtraProjection(self.rank)}

    def key_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        return {"low_k": ExtraProjection(self.rank)}

    def start(self, spec: StateSpec, sizes: HeadSizes) -> LowRankBandState:
        band = self.band.start(spec, sizes)
        return LowRankBandState(self.low.start(spec, sizes._replace(k_dim=self.rank)), band)

    def forward(
        self, queries: Queries, keys: Keys | None, state: LowRankBandState | None, ctx: Context
    ) -> Out[AttentionOutput]:
        self._check_heads(queries.q.shape[1])
        low, low_keys = queries, keys
        if not ctx.remember:  # with `remember`, only the state is needed, and queries are placeholders
            queries, (q,) = split_extras(queries, "low_q")
            low = queries._replace(q=q)
        if keys is not None:
            keys, (k,) = split_extras(keys, "low_k")
            low_keys = keys._replace(k=k)
        near = self.band(queries, keys, None if state is None else state.band, ctx)
        far = self.low(low, low_keys, None if state is None else state.low, ctx)
        new_state = None if state is None else LowRankBandState(far.state, near.state)
        return Out(near.y if ctx.remember else AttentionOutput(self._combine(far.y.y, near.y.y), None), new_state)

    def head_values(self) -> Mapping[str, HeadValues]:
        """Return g_h, the weight (0 to 1) of the low-rank part in the output of each head."""
        return {} if self.gate is None else {"low rank share": HeadValues(self.gate.sigmoid()[None, :, None])}

    def _combine(self, low: Float[Tensor, "B H T V"], band: Float[Tensor, "B H T V"]) -> Float[Tensor, "B H T V"]:
        if self.gate is None:
            return low + band
        gate = self.gate.sigmoid()[:, None, None].to(low.dtype)
        return gate * low + (1 - gate) * band

    def _check_heads(self, heads: int) -> None:
        if heads != self.heads:
            raise ValueError(
                f"LowRankBand was made for {self.heads} heads, but got {heads}. Create it with heads={heads}"
            )


class _Narrow(Softmax):
    """Softmax that pads narrow queries and keys to the width of values, for kernels that need this."""

    def read(self, request: Request) -> Out[AttentionOutput]:
        q, k = request.queries.q, request.keys.k
        missing_width = request.keys.v.shape[-1] - q.shape[-1]
        # one query needs no matrix of pairs, so copying the cache would only cost time
        if missing_width > 0 and q.shape[2] > 1:
            queries, keys = (
                request.queries._replace(q=F.pad(q, (0, missing_width))),
                request.keys._replace(k=F.pad(k, (0, missing_width))),
            )
            request = request.replace(queries=queries, keys=keys)
        return super().read(request)


def _examples() -> tuple[Example, ...]:
    apart = {"merge": "a mean or sum of two softmaxes over different sets of keys is not a softmax, so it has no lse"}
    makes = (
        lambda: LowRankBand(2, kf.Causal() & kf.Band(3), kf.Causal(), 2),
        lambda: LowRankBand(2, kf.Band(2), kf.Full(), 3, combine="sum"),
    )
    return tuple(Example(make, breaks=apart) for make in makes)


EXAMPLES = _examples()
