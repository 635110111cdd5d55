"""Clustered: softmax attention that replaces similar queries by their mean."""

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
    """Softmax attention in which similar queries form a cluster and share the output of their mean.

    y_i = softmax(scale q^c_c(i) K^T) V, q^c_j = the mean of q_i over c(i) = j

    Choose it for long encoders with many similar queries. It computes C * S pairs for C clusters instead of T * S. It
    adds no weights, so it also works with the projections of an encoder that is already trained. All keys are read,
    and the error of a query is bounded by its distance from the mean of its cluster.

    Prefer it to LSH and routing if attention is spread over many keys. Those mechanisms read few keys, and a key and a
    query must meet in a bucket. Prefer it to Linformer, whose keys are mixtures of tokens, if each key must stay one
    token or if lengths vary. `ImprovedClustered` is closer to dense attention and computes T * topk more pairs.

    Keys are not clustered, so a source may have any length. Outputs over disjoint sets of keys can be merged into one
    softmax. No causal form is known: the mean of a query's cluster includes later queries.

    grouping: assigns queries to clusters; `HammingKMeans(k_dim)` in the paper. Each row and query head has its own
        clusters. Sharing of key heads does not change them.
    scale: factor of the dot product; 1/sqrt(k_dim) by default.
    dropout: fraction of the attention weights of the means that training drops; all queries of a cluster lose the same
        weights.

    Errors: NoState (no decoding state exists) from `start`; ValueError for `ctx.only`, which limits single queries, and
    for cross-attention without a source.

    Source: Vyas et al., 2020, arXiv:2007.04825, section 3.2; the fast-transformers package computes the same from the
    same clusters.
    """

    # the matrix belongs to the cluster means, not to the request's queries
    received_attention = Mechanism.received_attention

    def __init__(self, grouping: Grouping, *, scale: float | None = None, dropout: float = 0.0):
        super().__init__()
        self.grouping = check_part(
            "grouping", grouping, Grouping, "a clustering, such as HammingKMeans(k_dim=64, clusters=25)"
        )
        self.pattern, self.scale, self.dropout = Full(), check_scale(scale), check_probability("dropout", dropout)

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        self.grouping.check(sizes.k_dim)  # a layer calls this when it is built, so a wrong width fails there
        return super().query_extras(sizes)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> KV:
        raise NoState(
            f"{type(self).__name__} clusters the queries of a whole row at once, so it cannot be decoded with a "
            "cache. Use Softmax(Causal()) or Routing, or generate(..., recompute=True)"
        )

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        self.grouping.check(queries.q.shape[-1])
        name = type(self).__name__
        if keys is None:
            raise ValueError(f"{name} does not cache a source. Pass Context(source=..., source_pos=...) in every call")
        if ctx.only is not None:
            raise ValueError(
                f"ctx.only limits single queries, but {name} computes attention for clusters of queries. Use Softmax"
            )
        return queries, keys

    def batch_pattern(self, ctx: Context) -> Pattern:
        return self.pattern  # every query reads all keys already, so `ctx.also` adds none

    def read(self, request: Request) -> Out[AttentionOutput]:
        if not request.queries.q.shape[2]:
            return Out(read(request))
        clusters = self.clusters(request.queries)
        of_clusters = read(self.make_mean_request(request, clusters))
        return Out(AttentionOutput(clusters.spread(of_clusters.y), self.spread_lse(clusters, of_clusters.lse)))

    def clusters(self, queries: Queries) -> QueryClusters:
        """Return the clusters of the queries of a call; gradient checkpointing reuses them."""
        cluster = choice(lambda: self.grouping(queries.q, queries.pos))
        return QueryClusters.from_clusters(cluster, queries.pos >= 0, self.grouping.clusters)

    def make_mean_request(self, request: Request, clusters: QueryClusters) -> Request:
        """Return a request in which the cluster means are the queries.

        The mean of an empty cluster is 0, and its output is not used.
        """
        q, pos = request.queries.q, request.queries.pos
        centre = clusters.mean(at_least_float32(q)).to(q.dtype)

        def numbers() -> Tensor:
            return torch.arange(clusters.clusters, device=q.device).expand(len(q), 1, -1)

        at = request.memo.get(numbers, "clusters", pos, clusters.clusters)
        return request.replace(queries=Queries(centre, at, head=request.queries.head), below={})

    def spread_lse(self, clusters: QueryClusters, lse: Float[Tensor, "B H C"] | None) -> Float[Tensor, "B H T"]:
        """Return the log-sum-exp of each query's scores, copied from its cluster mean; -inf at padding."""
        assert lse is not None
        return clusters.spread(lse[..., None], -torch.inf)[..., 0]


EXAMPLES = (
    Example(lambda: Clustered(HammingKMeans(8, 3, bits=9, iterations=3))),
    Example(lambda: Clustered(HammingKMeans(8, 5, bits=4, iterations=1, bias=True, redraw=1), scale=1.0)),
)
