"""PublishedRouting: the Routing Transformer's clusters as published, all of the same size."""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from kinformer.attend import read
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.autocast import at_least_float32
from kinformer.core.checks import check_at_least, check_flag, check_in_range, check_option
from kinformer.core.choice import choice
from kinformer.core.example import Example
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.core.layer import Context, Out
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.core.scores.product import Product
from kinformer.core.ties import tolerance_of
from kinformer.core.unrepeatable import Unrepeatable
from kinformer.nn.mechanisms.centroids import Update
from kinformer.nn.mechanisms.key_groups import (
    by_key_head,
    by_query_head,
    check_no_limits,
    gather_columns,
    gather_positions,
    own_column,
)
from kinformer.nn.mechanisms.routing import Norm, Routed

Alone = Literal["skipped", "zero"]
PRODUCT = Product()
UNIT, LEAST = 2**40, -(2**62)  # similarities from -1 to 1 are cached with the keys as integers


class PublishedRouting(Routed):
    """Routing attention in which each centroid takes the `window` queries and keys most similar to it.

    The queries of a cluster read its keys. A query gets the mean of its attention outputs over the clusters that took
    it, and 0 if no cluster took it. Choose it to reproduce the Routing Transformer, at a cost of clusters * window^2.
    Choose `Routing` otherwise: it reads whole clusters and keeps laws (tested properties, such as equal results in
    chunks) that this form breaks. Here the clusters of a token depend on all other tokens.

    The published PyTorch code corresponds to `norm="none"`, `update="direction"`, `eps=1e-5` and, if causal,
    `null=True`. The authors' code adds `eps=1e-2`. The decoding state is a cache of keys, which every call clusters
    again among all tokens so far. The lse (log-sum-exp) is None, because a mean of softmax outputs is not a softmax.

    heads, k_dim, clusters, pattern, scale, norm, decay, update, seed: as in `Routing`.
    window: number of tokens that a centroid takes; length / clusters in the paper.
    v_dim: width of a value; k_dim by default. Only `null` uses it.
    null: True adds a learned key and value for each head and cluster, which the queries of the cluster also read.
    alone: treatment of a cluster in which a causal query found no key. "skipped" leaves the cluster out of the mean,
        and "zero" counts an output of 0. With `SharedQK(..., unit=False)`, the paper's causal form, and with `null`,
        there is no such cluster.
    eps: number that is added to the count of clusters before the division of the mean.

    Errors: as in `Routing`; also ValueError for `ctx.only`, and if the width of the null value is not the width of
    values.

    Source: Roy et al., 2020, arXiv:2003.05997, algorithm 1.
    """

    received_attention = Mechanism.received_attention  # a mean of several reads has no single attention matrix
    unrepeatable = Unrepeatable(
        "PublishedRouting chooses the tokens of its clusters anew in each call",
        "leave out chunk= of reformer, window= of routing_transformer",
    )

    def __init__(
        self,
        heads: int,
        k_dim: int,
        clusters: int,
        window: int,
        *,
        v_dim: int | None = None,
        null: bool = False,
        alone: Alone = "skipped",
        eps: float = 0.0,
        pattern: Pattern | None = None,
        scale: float | None = None,
        norm: Norm = "layer",
        decay: float = 0.999,
        update: Update = "sum",
        seed: int = 0,
    ):
        super().__init__(
            heads, k_dim, clusters, pattern=pattern, scale=scale, norm=norm, decay=decay, update=update, seed=seed
        )
        self.window, self.eps = check_at_least("window", window, 1), check_in_range("eps", eps, 0, math.inf)
        self.alone = check_option("alone", alone, Alone)
        self.null_k = nn.Parameter(torch.randn(heads, clusters, k_dim)) if check_flag("null", null) else None
        self.null_v = nn.Parameter(torch.randn(heads, clusters, v_dim or k_dim)) if null else None

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        if self.null_v is not None and self.null_v.shape[-1] != sizes.v_dim:
            wide = self.null_v.shape[-1]
            raise ValueError(
                f"the null value of PublishedRouting has width {wide}, but the values of the layer have width "
                f"{sizes.v_dim}. Create it with v_dim={sizes.v_dim}"
            )
        return super().query_extras(sizes)

    def read(self, request: Request) -> Out[AttentionOutput]:
        queries, keys = request.queries, request.keys
        q, k, v = (at_least_float32(x) for x in (queries.q, keys.k, keys.v))
        query_choice, key_choice = self._choose_queries(request), self._choose_keys(keys)
        q = gather_columns(q, query_choice.column)
        output = read(
            request.regroup(
                queries=Queries(q, query_choice.pos, head=queries.head),
                keys=Keys(gather_columns(k, key_choice.column), gather_columns(v, key_choice.column), key_choice.pos),
                score=PRODUCT,
                lse=True,
                rows=torch.arange(len(k), device=q.device).repeat_interleave(self.clusters),
            )
        )
        if self.null_k is not None:
            output = merge(output, self._null(q, query_choice, request.scale))
        aux, stats = self.report_distances(request)
        assert output.lse is not None
        counted = output.lse > -torch.inf if self.alone == "skipped" else query_choice.pos >= 0
        y = query_choice.mean(output.y, counted, queries.q.shape[2], self.eps).to(queries.q.dtype)
        return Out(AttentionOutput(y, None), aux=aux, stats=stats)

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        check_no_limits(self, ctx, "clusters", "Routing")
        queries, keys = super().preprocess(queries, keys, ctx)
        assert keys is not None
        with torch.no_grad():
            liked = (self.centroids.similarities(queries.q) * UNIT).long()  # [B H T C]
        if ctx.remember:  # only the state is needed, and queries are placeholders
            liked = torch.full_like(liked, LEAST)
        return queries, keys._replace(tags={"liked": by_key_head(liked, keys.k.shape[1])})

    def tags(self, keys: Keys) -> Mapping[str, Int[Tensor, "B G S r"]]:
        batch, groups, length, _ = keys.k.shape
        tags = super().tags(keys)
        # similarity of each centroid to the query of a key's token; a later call chooses among all queries
        no_likes = keys.pos.new_zeros(batch, groups, length, self.heads * self.clusters // groups)
        return {**tags, "liked": keys.tags.get("liked", no_likes)}

    def _choose_queries(self, request: Request) -> "RoutedTokens":
        """Return the queries of this call that each centroid takes.

        A centroid takes the most similar queries of all tokens so far.
        """
        queries, keys = request.queries, request.keys
        heads = queries.q.shape[1]
        key_column, has_key = (x.expand(-1, heads, -1)[..., None] for x in own_column(request))  # [B H T 1]

        def best() -> Bool[Tensor, "B H T C"]:
            liked = by_query_head(keys.tags["liked"], heads).masked_fill((keys.pos < 0)[..., None], LEAST)
            near = math.ceil(float(tolerance_of(at_least_float32(queries.q.new_ones(())))) * UNIT)
            return is_among_largest(liked, self.window, near).take_along_dim(key_column, 2) & has_key

        is_chosen = choice(best)
        at = stable_top_k(is_chosen.long(), self.window)  # taken queries first, then others [B H w C]
        column, real = (x.permute(0, 3, 1, 2) for x in (at, is_chosen.take_along_dim(at, 2)))  # [B C H w]
        return RoutedTokens(column, gather_positions(queries.pos, column, real))

    def _choose_keys(self, keys: Keys) -> "RoutedTokens":
        """Return the keys most similar to each centroid. The first wins ties, and padding is never chosen."""

        def choose_nearest() -> Int[Tensor, "B H w C"]:
            similar = self.centroids.similarities(keys.k).masked_fill((keys.pos < 0)[..., None], -torch.inf)
            if similar.shape[2] <= self.window:
                return stable_top_k(torch.zeros_like(similar, dtype=torch.long), self.window)
            return stable_top_k(
                is_among_largest(similar, self.window, float(tolerance_of(similar.new_ones(())))).long(), self.window
            )

        with torch.no_grad():
            column = choice(choose_nearest).permute(0, 3, 1, 2)  # [B C H w]
        return RoutedTokens(column, gather_columns(keys.pos[..., None], column)[..., 0])

    def _null(self, q: Float[Tensor, "BC H w K"], query_choice: "RoutedTokens", scale: float) -> AttentionOutput:
        """Return the read of the null key of each cluster."""
        assert self.null_k is not None and self.null_v is not None
        k, v = (
            x.to(q.dtype).transpose(0, 1).repeat(len(query_choice.column), 1, 1) for x in (self.null_k, self.null_v)
        )
        score = torch.einsum("nhwk,nhk->nhw", q, k) * scale
        real = query_choice.pos >= 0
        y = torch.where(real[..., None], v[:, :, None], 0.0)
        return AttentionOutput(y, torch.where(real, score, -torch.inf))


def is_among_largest(x: Num[Tensor, "B H S C"], count: int, near: float) -> Bool[Tensor, "B H S C"]:
    """Return True for the `count` largest numbers along dimension S; the first ones win ties.

    x: numbers, [B, H, S, C].
    count: number of marked entries.
    near: tolerance within which numbers tie with the smallest marked one.
    """
    if x.shape[2] <= count:
        return torch.ones_like(x, dtype=torch.bool)
    last = x.topk(count, 2, sorted=False).values.amin(2, keepdim=True)
    above = x > last + near
    equal = (x >= last - near) & ~above
    return above | equal & (equal.cumsum(2) <= count - above.sum(2, keepdim=True))


def stable_top_k(x: Int[Tensor, "B H S C"], count: int) -> Int[Tensor, "B H w C"]:
    """Return the indices of the `count` largest numbers along dimension S, in a stable descending order.

    x: numbers, [B, H, S, C].
    count: number of indices.
    """
    length = x.shape[2]
    later = torch.arange(length, device=x.device)[:, None]
    return (x.clamp_min(-UNIT - 1) * length - later).topk(min(count, length), 2).indices


class RoutedTokens(NamedTuple):
    """The w tokens of each row and head that each cluster of `PublishedRouting` took.

    column: indices (columns) of the tokens in the row, [B, C, H, w].
    pos: positions of the tokens, [B*C, H, w]; -1 for an empty place.
    """

    column: Int[Tensor, "B C H w"]
    pos: Int[Tensor, "BC H w"]

    def mean(
        self, y: Float[Tensor, "BC H w V"], counted: Bool[Tensor, "BC H w"], length: int, eps: float
    ) -> Float[Tensor, "B H T V"]:
        """Return for each token the mean of its outputs over the clusters that took it and count.

        y: attention outputs of the tokens of each cluster, [B*C, H, w, V].
        counted: True for outputs that count, [B*C, H, w].
        length: number of tokens in a row.
        eps: number that is added to the count of clusters before the division.
        """
        weight = counted[..., None].to(y.dtype)
        values = torch.cat([y * weight, weight], -1)  # [B*C H w V+1]
        values = values.unflatten(0, self.column.shape[:2]).transpose(1, 2).flatten(2, 3)  # [B H C*w V+1]
        column = self.column.transpose(1, 2).flatten(2)  # [B H C*w]
        rows = torch.arange(values.shape[0] * values.shape[1], device=values.device).unflatten(0, values.shape[:2])
        total = values.new_zeros(rows.numel() * length, values.shape[-1])
        total = total.index_add(0, (column + length * rows[..., None]).flatten(), values.flatten(0, 2))
        total = total.unflatten(0, (*rows.shape, length))
        count = total[..., -1:]
        return total[..., :-1] / torch.where(count > 0, count + eps, 1.0)


def _examples() -> tuple[Example, ...]:
    chunk = "the published form gives each cluster a fixed number of the tokens in a call"
    peek = "a later token that fits a cluster better removes an earlier token from it"
    merged = "a mean over clusters is not a softmax over one set of keys, so it has no lse"
    gradients = "the tokens of a call decide which tokens each cluster takes, and so the gradients"
    causal = {"chunk": chunk, "gradients": gradients, "peek": peek, "merge": merged}
    return (
        Example(lambda: PublishedRouting(2, 8, 3, 4), breaks=causal),
        Example(
            lambda: PublishedRouting(2, 8, 2, 5, pattern=Full(), norm="none", eps=1e-5, update="direction"),
            breaks={"merge": merged},
        ),
        Example(lambda: PublishedRouting(2, 8, 4, 2, alone="zero"), breaks=causal),
    )


EXAMPLES = _examples()
