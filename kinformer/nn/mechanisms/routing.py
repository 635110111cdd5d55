"""Routing: attention within clusters that online k-means learns."""

from collections.abc import Mapping
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.autocast import at_least_float32
from kinformer.core.checks import check_at_least, check_option, check_scale
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.kv_cache import KV
from kinformer.core.layer import Context, Out
from kinformer.core.loss import Penalty
from kinformer.core.pattern import Pattern, check_pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.unit_vector import unit
from kinformer.nn.mechanisms.centroids import Centroids, Update
from kinformer.nn.mechanisms.key_groups import (
    SameGroupScore,
    by_key_head,
    by_query_head,
    check_made_for_keys,
    check_made_for_layer,
    check_made_for_queries,
    check_no_additions,
    gather_columns,
    own_column,
)
from kinformer.nn.mechanisms.sorted_groups import read_groups

Norm = Literal["layer", "none"]
EPS = 1e-5  # added to the variance


class Routed(KeyValueMechanism):
    """Base class of both forms of routing: it owns centroids, a cache of keys, and the commitment.

    The commitment is a penalty on the distance of tokens from their centroids. A subclass defines the attention.

    heads, k_dim, clusters, pattern, scale, norm, decay, update, seed: as in `Routing`.
    """

    def __init__(
        self,
        heads: int,
        k_dim: int,
        clusters: int,
        *,
        pattern: Pattern | None = None,
        scale: float | None = None,
        norm: Norm = "layer",
        decay: float = 0.999,
        update: Update = "sum",
        seed: int = 0,
    ):
        super().__init__()
        self.heads, self.k_dim = check_at_least("heads", heads, 1), check_at_least("k_dim", k_dim, 1)
        self.centroids, self.clusters = Centroids(heads, k_dim, clusters, decay, update, seed), clusters
        self.pattern = Causal() if pattern is None else check_pattern("pattern", pattern)
        self.scale, self.norm, self.score = (
            check_scale(scale),
            check_option("norm", norm, Norm),
            SameGroupScore("cluster"),
        )

    def penalties(self) -> dict[str, Penalty]:
        """Return the penalty "commitment" on the distance of tokens from their centroids.

        It trains the layers below and the projections, but not the centroids.
        """
        return {"commitment": Penalty(trains=(), reaches_x=True)}

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        # a layer calls this when it is built, so the error is raised there
        check_made_for_layer(self, sizes, self.heads, self.k_dim)
        return super().query_extras(sizes)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> KV:
        if sizes.cross:
            raise ValueError(self._other_sequence_message())
        return super().start(spec, sizes)

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        check_no_additions(self, ctx, "clusters")
        if keys is None or not keys.own:
            raise ValueError(self._other_sequence_message())
        check_made_for_queries(self, queries.q, self.heads, self.k_dim)
        check_made_for_keys(self, keys.k, self.heads, self.k_dim)
        keys = keys._replace(k=self.normalise(keys.k))
        if ctx.remember:
            return queries, keys
        q = self.normalise(queries.q)
        return queries._replace(q=q, tags={"cluster": self.centroids.assign_clusters(q)[..., None]}), keys

    def tags(self, keys: Keys) -> Mapping[str, Int[Tensor, "B G S r"]]:
        check_made_for_keys(self, keys.k, self.heads, self.k_dim)
        return {"cluster": by_key_head(self.centroids.assign_clusters(keys.k)[..., None], keys.k.shape[1])}

    def normalise(self, x: Float[Tensor, "B H T K"]) -> Float[Tensor, "B H T K"]:
        """Return queries or keys x, normalised for clusters and scores; unchanged for norm="none"."""
        if self.norm == "none":
            return x
        # one token per row, because PyTorch's compiler mistakes the gradients of other layouts
        flat = at_least_float32(x).flatten(0, -2)
        return F.layer_norm(flat, flat.shape[-1:], eps=EPS).view(x.shape).to(x.dtype)

    def report_distances(self, request: Request) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the commitment and the statistics of an attention call, each by name.

        The commitment is half the mean squared distance of each token's query to its centroid plus half the distance of
        its key. In training, the statistics are the sums that move the centroids.
        """
        queries, keys = request.queries, request.keys
        heads = queries.q.shape[1]
        column, has_key = own_column(request)
        at = column.expand(-1, heads, -1)[:, None]  # [B 1 H T]
        k, k_cluster = (
            unit(at_least_float32(gather_columns(keys.k, at))),
            gather_columns(by_query_head(keys.tags["cluster"], heads), at)[..., 0],
        )
        q, q_cluster = unit(at_least_float32(queries.q)), queries.tags["cluster"][..., 0]
        distance = (self.centroids.distance(q, q_cluster) + self.centroids.distance(k, k_cluster)) / 2
        if not self.training:
            return {"commitment": distance}, {}
        sums = self.centroids.sums(q, q_cluster, queries.pos >= 0) + self.centroids.sums(k, k_cluster, has_key)
        return {"commitment": distance}, {"clusters": sums}

    def _other_sequence_message(self) -> str:
        name = type(self).__name__
        return f"{name} clusters queries and keys of one sequence, but got keys of another sequence. Use Softmax"


class Routing(Routed):
    """Softmax attention over S_i, the keys with the same nearest centroid as query i.

    y_i = sum over j in S_i of softmax(scale q_i.k_j) v_j

    Choose it if a few keys, found by content, carry the attention, and the clusters should be learned. Use it beside
    local heads, as in the paper: `SplitHeads(Softmax(Causal() & Band(64)), Routing(...))`. A query reads all keys of
    its cluster, and only a token's own vector decides its cluster. Chunking, padding and later tokens therefore change
    nothing, and it decodes with a cache of keys. `PublishedRouting` is the paper's balanced form. Long rows are sorted
    by cluster, so the cost depends on the size of the clusters. In short rows and compiled graphs, all pairs are
    computed and masked.

    With `SharedQK(d, heads)` a causal token always reads itself; otherwise a query may read nothing. The auxiliary
    output "commitment" is the mean squared distance, per component, between the directions of a token and their
    centroids. Set its weight in a model with `LM(..., penalties={"commitment": 1e-2})`.

    heads: number of query heads; each has its own centroids.
    k_dim: width of a query and a key.
    clusters: number of centroids per head; the square root of the length in the paper.
    pattern: keys that a query may read at all; `Causal()` by default.
    scale: factor of the dot product; 1/sqrt(k_dim) by default.
    norm: "layer" normalises queries and keys without gain and bias; "none" leaves them unchanged.
    decay: decay of the centroids' moving average, which each training step updates.
    update: "sum" from the paper, or "direction" from the published PyTorch code; see `Centroids`.
    seed: seed of the first centroids. A vector near a border may change its cluster if its precision changes.

    Errors: NoState (no decoding state exists) from `start` if the pattern allows later keys; ValueError with
    `ctx.also`, for a layer with other head sizes, and for keys of another sequence.

    Source: Roy et al., 2020, arXiv:2003.05997, section 4; the commitment: the routing-transformer package (P. Wang,
    2020) after van den Oord et al., 2017, arXiv:1711.00937.
    """

    merges = True

    def read(self, request: Request) -> Out[AttentionOutput]:
        aux, stats = self.report_distances(request)
        return Out(read_groups(request, self.clusters), aux=aux, stats=stats)


EXAMPLES = (
    lambda: Routing(2, 8, 3, seed=2),
    lambda: Routing(2, 8, 2, pattern=Full(), norm="none", seed=1),
    lambda: Routing(2, 8, 1, scale=1.0),
)
