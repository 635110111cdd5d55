"""Retrieval: local attention together with attention to the top k keys of a long memory."""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

import kinformer as kf
from kinformer.attend import impl_of, read
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.bias import Bias
from kinformer.core.checks import (
    check_at_least,
    check_flag,
    check_in_range,
    check_option,
    check_optional_part,
    check_part,
)
from kinformer.core.choice import choice
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, HeadValues, Keys, Queries
from kinformer.core.key_value_mechanism import KeyValueMechanism, joined_wants
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism
from kinformer.core.memory import MemoryCost
from kinformer.core.pattern import Not, Pattern, check_pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.core.request import Request
from kinformer.core.search import Search
from kinformer.core.unit_vector import unit
from kinformer.nn.mechanisms.index_search import find_best_keys
from kinformer.nn.mechanisms.read_columns import read_columns
from kinformer.nn.search.exact import ExactSearch

CROSS = "Retrieval searches the past of one sequence, but got keys of another sequence. Use Softmax to read a source"
EXACT = ExactSearch()
MOST = 1 << 24  # maximum number of pairs for which a pattern is evaluated when a layer is built


class Retrieval(KeyValueMechanism):
    """Local attention, together with attention to the k keys of highest score in a long memory.

    y_i = g_h far_i + (1 - g_h) near_i, g_h a learned number per head that starts at 1/2

    Choose it, in one of the upper layers, for text that repeats what it said long ago. The near attention is softmax
    attention with the `bias` over a query's own segment of `length` tokens and the `cache` tokens before it. The far
    attention takes the `k` keys with the highest scores from the `memory` tokens before the segment. The latest
    positions win ties.

    Queries and keys have length 1 per head, and a learned |s_h| scales their product. The memory is searched exactly,
    in blocks: every key is scored, and only the scores of one block are held. As in the authors' code, the memory also
    holds the keys of the cache, so both attentions can read the same key.

    Keys and values of earlier segments get no gradients, in the cache and in the memory, wherever a row was cut. The
    decoding state is a cache of keys and keeps its autograd graph. If a model has no other memory, train it on
    consecutive text (`LM(..., lanes=True)`, with lanes as parallel pieces of one text). `ctx.only` separates documents
    within one row.

    heads: number of query heads of the layer.
    length: number of tokens in a segment.
    memory: number of keys before the segment that are searched, at least as many as the near attention takes there. It
        is not a parameter and can be changed at any time.
    k: number of memory keys that a query reads.
    bias: bias that changes the near scores.
    cache: number of tokens before the segment that the near attention reads.
    near: keys of the near attention, instead of the segment and its cache (without `cache=`). The paper's sliding
        window of w tokens is `Causal() & Band(w)`. The window in its code, without the query's own token, is `Band(w,
        -1)`.
    apart: True searches only keys that the near attention leaves out, `memory` of them before the cache.
    combine: "gate", from the paper, or "joint", from later code. With "joint" one softmax runs over the keys of both
        attentions. It has an lse (log-sum-exp), so it can be merged. Each key is then read once, as with `apart`.
    eps: number that is added to |x|^2 before queries and keys are scaled to length 1.
    impl: name of an executor, a way to compute attention, for the near attention; "auto" selects the one with the
        lowest estimated cost.
    search: search of the memory. `ExactSearch()` scores every key; a FAISS index finds candidates. `Flat()` finds the
        same keys except for ties, and `HNSW()` finds nearly all. Every call builds an index for each segment of a row
        and key head. This was not faster than exact search up to a memory of 16,384. Calls of a few tokens and
        compiled calls use exact search.

    Errors: ValueError for a layer with another number of heads and for cross-attention. ValueError for a `near` that
    allows later keys, has no limit to the past, or is given with a `cache`. ValueError also for a `search` without its
    package (`pip install '.[faiss]'`), or without an index for keys of this width.

    Source: Wu et al., 2022, arXiv:2203.08913, section 3.
    """

    def __init__(
        self,
        heads: int,
        length: int,
        memory: int,
        k: int = 32,
        bias: Bias | None = None,
        *,
        cache: int = 0,
        near: Pattern | None = None,
        apart: bool = False,
        combine: Literal["gate", "joint"] = "gate",
        eps: float = 1e-6,
        impl: str = "auto",
        search: Search = EXACT,
    ):
        super().__init__()
        if k < 1:
            raise ValueError(
                f"k={k} must be at least 1. To retrieve no keys, use Softmax(Causal() & Segment({length}, {cache}))"
            )
        self.length, self.own = check_at_least("length", length, 1), Segment(length, 0)
        self.near = (
            Causal() & Segment(length, check_at_least("cache", cache, 0))
            if near is None
            else check_pattern("near", near)
        )
        if near is not None and cache:
            raise ValueError(
                f"cache={cache} and near={near} both choose the keys that are read in full. Pass only one of them"
            )
        back, ahead = (cache, 0) if near is None else self.near.reach()
        if back == torch.inf or ahead > 0:
            raise ValueError(
                f"near={near} reads ahead or has no limit to the past. Pass a window, such as Causal() & Band({length})"
            )
        self.cache = cache if near is None else _keys_before(self.near, heads, length, int(back))
        self.apart = check_flag("apart", apart) or combine == "joint"
        self.memory, self.k = check_at_least("memory", memory, 0), check_at_least("k", k, 1)
        self.bias = check_optional_part("bias", bias, Bias, "a bias, such as T5(heads)")
        self.combine, self.eps, self.impl = check_option("combine", combine, ("gate", "joint")), eps, impl_of(impl)
        check_in_range("eps", eps, 0, torch.inf)
        self.wants = joined_wants(bias)
        self.scale = 1.0  # scores are scaled by head
        self.head_scale = nn.Parameter(torch.ones(check_at_least("heads", heads, 1)))
        self.gate = nn.Parameter(torch.zeros(heads)) if combine == "gate" else None
        self.search = check_part("search", search, Search, "a search, such as ExactSearch() or HNSW()")

    @property
    def gradient_stops(self) -> Pattern:
        """Pairs whose key and value get no gradient: a query and a key of an earlier segment."""
        return ~self.own

    @property  # computed in each call, because `memory` may change
    def pattern(self) -> Pattern:  # type: ignore[override]
        """Keys that a query may read at all: its segment, the cache and the memory before it."""
        back = self.cache + self.memory if self.apart else max(self.cache, self.memory)
        return Causal() & Segment(self.length, back)

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        if sizes.cross:  # raises when the layer is built
            raise ValueError(CROSS)
        self._check_heads(sizes.heads)
        self.search.product_index(sizes.k_dim)  # raises when the layer is built
        return super().query_extras(sizes)

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        if keys is None or not keys.own:
            raise ValueError(CROSS)
        self._check_heads(queries.q.shape[1])
        keys = keys._replace(k=unit(keys.k, self.eps))
        if ctx.remember:
            return queries, keys
        return queries._replace(q=unit(queries.q, self.eps) * self.head_scale.abs()[:, None, None]), keys

    def read(self, request: Request) -> Out[AttentionOutput]:
        before = request.pattern & Not(self.own)  # ~ cannot compile
        pattern = before & Not(self.near) if self.apart else before
        far = request.replace(keys=request.keys.detach(), pattern=pattern, bias=None, below={})
        columns = choice(lambda: find_best_keys(far, self.k, self.search, self.length))
        distant, local = read_columns(far, columns), self._local(request)
        if self.gate is None:
            return Out(merge(distant, local))
        gate = self.gate.sigmoid()[:, None, None].to(local.y.dtype)
        return Out(AttentionOutput(gate * distant.y + (1 - gate) * local.y, None))

    def head_values(self) -> Mapping[str, HeadValues]:
        """Return g_h, the weight (0 to 1) of the memory in the output of each head."""
        return {} if self.gate is None else {"memory share": HeadValues(self.gate.sigmoid()[None, :, None])}

    def memory_cost(self) -> MemoryCost:
        return MemoryCost(self.length, self.cache, searched=self.memory)

    def received_attention(
        self, queries: Queries, keys: Keys, read: AttentionOutput, ctx: Context
    ) -> Float[Tensor, "B S"]:
        return Mechanism.received_attention(self, queries, keys, read, ctx)

    def _local(self, request: Request) -> AttentionOutput:
        """Return the near read, without gradients for keys of earlier segments."""
        near = request.replace(pattern=request.pattern & self.near)
        if not self.cache or not torch.is_grad_enabled():
            return read(near, self.impl)
        earlier = near.replace(keys=near.keys.detach(), pattern=near.pattern & Not(self.own))
        return merge(read(near.replace(pattern=near.pattern & self.own), self.impl), read(earlier, self.impl))

    def _check_heads(self, heads: int) -> None:
        if heads != len(self.head_scale):
            raise ValueError(
                f"Retrieval was made for {len(self.head_scale)} heads, but got {heads}. Create it with heads={heads}"
            )


def _keys_before(near: Pattern, heads: int, length: int, back: int) -> int:
    """Return the number of keys before a segment that its queries read with the pattern `near`."""
    turns = math.lcm(near.period() or 0, length)
    if not turns or heads * turns * back > MOST:
        return back
    with torch.device("cpu"):  # on CPU, because a layer may be built on the meta device
        q = torch.arange(turns)[:, None] + -(-back // turns) * turns
        n = torch.arange(1, back + 1)  # keys before the first of the segment
        of_heads = torch.arange(heads)[:, None, None]
        read = near(torch.zeros_like(of_heads), of_heads, q, q // length * length - n)
        is_read = read.expand(heads, turns, back).flatten(0, 1).any(0)
        return int((is_read * n).amax()) if back else 0


def _example() -> Retrieval:
    return Retrieval(2, 4, 6, 2)


def _joint() -> Retrieval:
    return Retrieval(2, 3, 8, 3, cache=2, combine="joint")


def _far() -> Retrieval:
    return Retrieval(2, 2, 20, 1)


def _window() -> Retrieval:
    return Retrieval(2, 4, 7, 2, near=Causal() & kf.Band(3))


APART = {"merge": "the k top keys among some of the keys differ from the k top keys among all keys"}
EXAMPLES = tuple(Example(make, breaks=APART) for make in (_example, _joint, _far, _window))
