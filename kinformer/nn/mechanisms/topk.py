"""TopK: attention to the k keys of highest score; BestOfRow: the same as a map of scores, with ties."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.checks import check_at_least, check_part, check_probability, check_scale
from kinformer.core.choice import choice
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism
from kinformer.core.pair_map import PairMap
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.request import Request
from kinformer.core.search import Search
from kinformer.core.ties import Tolerance, score_tolerance
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.index_search import find_best_keys
from kinformer.nn.mechanisms.read_columns import read_columns
from kinformer.nn.search.exact import ExactSearch

EXACT = ExactSearch()


class TopK(KeyValueMechanism):
    """Softmax attention over S_i, the k allowed keys j with the highest q_i.k_j.

    y_i = sum over j in S_i of softmax(scale q_i.k_j) v_j

    Choose it if attention should concentrate on few tokens: the weights of all others are exactly 0. The search is
    exact (maximum inner product) by default. Every allowed pair is scored, one block at a time, so T x S scores are
    never stored. Each query reads only k values, and gradients flow only through these. Scores within rounding error
    count as equal, and the latest positions win ties. `BestOfRow` reads all scores that equal the k-th, as in the
    paper. Decoding uses a cache of all keys that the pattern may still read.

    pattern: keys that a query may read at all, such as `Causal()`.
    k: number of keys that a query reads.
    scale: factor of the dot product; 1/sqrt(head_dim) by default.
    dropout: fraction of attention weights that training drops.
    search: search for keys. `ExactSearch()` scores every allowed pair. A FAISS index (`HNSW()`, `IVF()`, ..) finds most
        of these keys with fewer products. It holds the keys that a whole block of queries may read and grows along the
        row; the other keys are scored. Calls of a few tokens and compiled calls use exact search.

    Errors: ValueError for a `search` without its package, or without an index for keys of this width; NoState (no
    decoding state exists) from `start` if the pattern allows later keys.

    Source: Zhao et al., 2019, arXiv:1912.11637, section 2; content-based sparse attention in Lin et al., 2021,
    arXiv:2106.04554, section 4.1.3.
    """

    def __init__(
        self, pattern: Pattern, k: int = 8, *, scale: float | None = None, dropout: float = 0.0, search: Search = EXACT
    ):
        super().__init__()
        self.search = check_part("search", search, Search, "a search, such as ExactSearch() or HNSW()")
        self.pattern, self.k = check_pattern("pattern", pattern), check_at_least("k", k, 1)
        self.scale, self.dropout = check_scale(scale), check_probability("dropout", dropout)

    def read(self, request: Request) -> Out[AttentionOutput]:
        columns = choice(lambda: find_best_keys(request, self.k, self.search))
        return Out(read_columns(request, columns))

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        self.search.product_index(sizes.k_dim)  # raises when the layer is built
        return super().query_extras(sizes)

    def received_attention(
        self, queries: Queries, keys: Keys, read: AttentionOutput, ctx: Context
    ) -> Float[Tensor, "B S"]:
        return Mechanism.received_attention(self, queries, keys, read, ctx)


class BestOfRow(PairMap):
    """Map of attention scores that sets those below the k-th highest of their query to -inf.

    M(P, k)_ij = P_ij if P_ij >= t_i, the k-th highest of row i, and -inf otherwise

    Use it as `Explicit(Causal(), before=BestOfRow(8))`. This is the form of the paper and its code. All scores that
    equal t_i are read, so a query may read more than k keys. Scores within rounding error count as equal, such as the
    scores of a repeated token. Choose `TopK` for long rows, in which reading all values is too slow.

    k: number of scores that are kept for each query.

    Source: Zhao et al., 2019, arXiv:1912.11637, section 2.
    """

    by_query = True

    def __init__(self, k: int = 8):
        super().__init__()
        self.k = check_at_least("k", k, 1)

    def bind(self, request: Request) -> Callable[..., Float[Tensor, "B H T S"]]:
        return partial(self, tolerance=partial(score_tolerance, request))

    def forward(
        self, x: Float[Tensor, "B H T S"], mask: Bool[Tensor, "#B #H T S"] | None, tolerance: Tolerance | None = None
    ) -> Float[Tensor, "B H T S"]:
        x = x if mask is None else x.masked_fill(~mask, -torch.inf)
        if self.k >= x.shape[-1]:
            return x

        def is_lower() -> Bool[Tensor, "B H T S"]:
            value, column = x.detach().topk(self.k)
            last = value[..., -1:]
            return x < (last if tolerance is None else last - tolerance(column[..., -1:]))

        return x.masked_fill(choice(is_lower), -torch.inf)


APART = {"merge": "the k top keys among some of the keys differ from the k top keys among all keys"}


def _examples() -> tuple[Example, ...]:
    makes = (
        lambda: TopK(kf.Causal(), 3),
        lambda: TopK(kf.Full(), 2, scale=1.0),
        lambda: TopK(kf.Causal() & kf.Band(5), 1),
        lambda: Explicit(kf.Causal(), before=BestOfRow(3)),
    )
    return tuple(Example(make, breaks=APART) for make in makes)


EXAMPLES = _examples()
