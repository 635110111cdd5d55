"""Clustered: queries that are alike read as one, their mean."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.attend import read
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import at_least_float32
from kinformer.core.checks import check_part, check_probability, check_scale
from kinformer.core.choice import choice
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.kv_cache import KV
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism, NoState
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.nn.mechanisms.hamming_kmeans import Grouping, HammingKMeans
from kinformer.nn.mechanisms.query_clusters import QueryClusters


class Clustered(KeyValueMechanism):
    """Softmax attention of the means of clusters of queries; each query gets what the mean of its cluster read.

    y_i = softmax(scale q^c_c(i) K^T) V, q^c_j = the mean of q_i over c(i) = j

    Choose it for long encoders whose queries repeat themselves, at a cost of C * S pairs for C clusters, in place of
    T * S, and no weight more: it reads with the projections of any encoder, also trained ones. All keys are read, and
    the error of a query is bounded by its distance from the mean. Over LSH and routing where attention is spread over
    many keys: they read few keys, and keys and queries must meet in a bucket. Over Linformer where keys must stay
    tokens, of rows of any length. `ImprovedClustered` is nearer to dense attention, at a cost of T * topk pairs more.

    Keys are not clustered: a source may be as long as it likes. Reads of disjoint keys merge. No causal form is known:
    a query's cluster, and so its mean, is made of queries that come later.

    grouping: which queries are of one cluster, `HammingKMeans(k_dim)` in the paper. Clusters are of a row and a head of
        queries; which heads share a key head changes nothing.
    scale: the factor of the product, 1/sqrt(k_dim) unless given.
    dropout: the share of the means' attention weights that training drops, so for all queries of a cluster alike.

    Errors: NoState from `start`; ValueError for `ctx.only`, which speaks of single queries. Source: Vyas et al., 2020,
    arXiv:2007.04825, section 3.2; the fast-transformers package computes the same from the same clusters.
    """

    received_attention = Mechanism.received_attention  # its matrix is of means of queries, and not of the request's

    def __init__(self, grouping: Grouping, *, scale: float | None = None, dropout: float = 0.0):
        super().__init__()
        self.grouping = check_part("grouping", grouping, Grouping, "one, such as HammingKMeans(k_dim=64, clusters=25)")
        self.pattern, self.scale, self.dropout = Full(), check_scale(scale), check_probability("dropout", dropout)

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        self.grouping.check(sizes.k_dim)  # asked when a layer is built, and so refused there
        return super().query_extras(sizes)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> KV:
        raise NoState(
            f"{type(self).__name__} puts the queries of a whole row into clusters at once, so it cannot be decoded "
            "with a cache; use Softmax(Causal()) or Routing, or generate(..., recompute=True)"
        )

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        self.grouping.check(queries.q.shape[-1])
        name = type(self).__name__
        if keys is None:
            raise ValueError(f"{name} keeps no source; give Context(source=..., source_pos=...) in every call")
        if ctx.only is not None:
            raise ValueError(f"ctx.only speaks of single queries, and those of {name} read by clusters; use Softmax")
        return queries, keys

    def batch_pattern(self, ctx: Context) -> Pattern:
        return self.pattern  # all is read already

    def read(self, request: Request) -> Out[AttentionOutput]:
        if not request.queries.q.shape[2]:
            return Out(read(request))
        clusters = self.clusters(request.queries)
        of_clusters = read(self.make_mean_request(request, clusters))
        return Out(AttentionOutput(clusters.spread(of_clusters.y), self.spread_lse(clusters, of_clusters.lse)))

    def clusters(self, queries: Queries) -> QueryClusters:
        """The clusters of the queries of a call: chosen once, also where a layer is computed again."""
        cluster = choice(lambda: self.grouping(queries.q, queries.pos))
        return QueryClusters.from_clusters(cluster, queries.pos >= 0, self.grouping.clusters)

    def make_mean_request(self, request: Request, clusters: QueryClusters) -> Request:
        """The read of the means of clusters. One of none is 0, and nobody asks what it read."""
        q, pos = request.queries.q, request.queries.pos
        centre = clusters.mean(at_least_float32(q)).to(q.dtype)

        def numbers() -> Tensor:
            return torch.arange(clusters.clusters, device=q.device).expand(len(q), 1, -1)

        at = request.memo.get(numbers, "clusters", pos, clusters.clusters)
        return request.replace(queries=Queries(centre, at, head=request.queries.head), below={})

    def spread_lse(self, clusters: QueryClusters, lse: Float[Tensor, "B H C"] | None) -> Float[Tensor, "B H T"]:
        """The lse of each query: that of its cluster's mean."""
        assert lse is not None
        return clusters.spread(lse[..., None], -torch.inf)[..., 0]


EXAMPLES = (
    Example(lambda: Clustered(HammingKMeans(8, 3, bits=9, iterations=3))),
    Example(lambda: Clustered(HammingKMeans(8, 5, bits=4, iterations=1, bias=True, redraw=1), scale=1.0)),
)
