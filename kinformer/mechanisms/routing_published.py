"""PublishedRouting: the Routing Transformer's clusters as published, all of one size."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.layer import Context, Out, State
from kinformer.core.pattern import Pattern, narrowed
from kinformer.core.read import Read, merge
from kinformer.core.state import carry
from kinformer.execute import attend
from kinformer.mechanisms.lsh import no_additions, precise
from kinformer.mechanisms.routing import Norm, Routed
from kinformer.patterns.full import Full


class PublishedRouting(Routed):
    """Each centroid takes the `window` queries and the `window` keys most similar to it, and those queries read those
    keys; a query gets the mean over the clusters that took it, 0 where none did.

    Choose it to reproduce the Routing Transformer, at a cost of clusters * window^2; the paper's window is
    length / clusters. `Routing` reads whole clusters and keeps the laws that this one breaks: which clusters take a
    token depends on all others. What is not said here is as in `Routing`. The published PyTorch code is `norm="none"`,
    `null=True` (a learned key and value per head and cluster, beside those that were taken) where it is causal, and
    `eps=1e-5`, added to the number of clusters before dividing. A state is a cache of keys, clustered anew in every
    call. The lse is None, because a mean of reads is no read.

    Errors: as in `Routing`. Source: Roy et al., 2020, arXiv:2003.05997, algorithm 1.
    """

    def __init__(
        self,
        heads: int,
        k_dim: int,
        clusters: int,
        window: int,
        *,
        v_dim: int | None = None,
        null: bool = False,
        eps: float = 0.0,
        pattern: Pattern | None = None,
        scale: float | None = None,
        norm: Norm = "layer",
        decay: float = 0.999,
        seed: int = 0,
    ):
        super().__init__(heads, k_dim, clusters, pattern=pattern, scale=scale, norm=norm, decay=decay, seed=seed)
        if window < 1:
            raise ValueError(f"window={window}: a centroid takes at least one query and one key")
        self.window, self.eps = window, eps
        self.null_k = nn.Parameter(torch.randn(heads, clusters, k_dim)) if null else None
        self.null_v = nn.Parameter(torch.randn(heads, clusters, v_dim or k_dim)) if null else None

    def forward(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        v: Float[Tensor, "B G S V"],
        k_pos: Int[Tensor, "B S"],
        state: State | None,
        ctx: Context,
        sides: Mapping[str, Float[Tensor, "B H T n"]],
    ) -> Out:
        no_additions(ctx, "Routing", "clusters")
        q, k = self.normed(q), self.normed(k)
        aux, stats = self.commitment(q, k, k_pos, ctx), self.statistics(q, k, k_pos, ctx)
        (k, v, k_pos), kept = carry(state, k, v, k_pos, narrowed(self.pattern, ctx.only, None))
        asking = taken(self.centroids.similar(q), ctx.pos, self.window)
        asked = taken(self.centroids.similar(k), k_pos, self.window)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        read = attend(
            precise(asking.of(q)),
            precise(asked.of(k)),
            precise(asked.of(v)),
            q_pos=asking.pos,
            k_pos=asked.pos,
            pattern=self.pattern,
            scale=self.scale,
            rows=torch.arange(len(q), device=q.device).repeat_interleave(asking.clusters),
            ctx=ctx,
        )
        if self.null_k is not None:
            read = merge(read, self._null(precise(asking.of(q)), asking))
        return Out(Read(asking.mean(read.y, self.eps).to(q.dtype), None), kept, aux, {}, stats)

    def _null(self, q: Float[Tensor, "BC H w K"], asking: "Taken") -> Read:
        """What queries read of the null key of their cluster."""
        assert self.null_k is not None and self.null_v is not None
        batch = len(q) // asking.clusters
        k, v = (x.to(q.dtype).transpose(0, 1).repeat(batch, 1, 1) for x in (self.null_k, self.null_v))
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        score = torch.einsum("nhwk,nhk->nhw", q, k) * scale
        there = asking.pos >= 0
        y = torch.where(there[..., None], v[:, :, None], 0.0)
        return Read(y, torch.where(there, score, -torch.inf))


class Taken(NamedTuple):
    """Which `w` tokens of each row and head each of the clusters took: their columns, and positions, -1 for none."""

    column: Int[Tensor, "B H C w"]
    pos: Int[Tensor, "BC H w"]
    length: int

    @property
    def clusters(self) -> int:
        return self.column.shape[2]

    def of(self, x: Float[Tensor, "B H T n"]) -> Float[Tensor, "BC H w n"]:
        """What belongs to the taken tokens, a row for each cluster."""
        picked = x.take_along_dim(self.column.flatten(2)[..., None], 2).unflatten(2, self.column.shape[2:])
        return picked.transpose(1, 2).flatten(0, 1)

    def mean(self, x: Float[Tensor, "BC H w n"], eps: float) -> Float[Tensor, "B H T n"]:
        """For each token the mean over the clusters that took it."""
        batch, heads = self.column.shape[:2]
        there = (self.pos >= 0)[..., None].to(x.dtype)
        values = torch.cat([x * there, there], -1).unflatten(0, (batch, self.clusters)).transpose(1, 2).flatten(2, 3)
        total = values.new_zeros(batch, heads, self.length, values.shape[-1])
        total = total.scatter_add(2, self.column.flatten(2)[..., None].expand_as(values), values)
        count = total[..., -1:]
        return total[..., :-1] / torch.where(count > 0, count + eps, 1.0)


def taken(similar: Float[Tensor, "B H T C"], pos: Int[Tensor, "B T"], window: int) -> Taken:
    """The tokens that are most similar to each centroid; of equal ones the first, and padding never."""
    real = (pos >= 0)[:, None, :, None]
    order = similar.masked_fill(~real, -torch.inf).argsort(dim=2, descending=True, stable=True)[:, :, :window]
    column = order.transpose(2, 3)
    chosen = pos[:, None, None].expand(*column.shape[:3], -1).take_along_dim(column, 3)
    return Taken(column, chosen.transpose(1, 2).flatten(0, 1), pos.shape[1])


EXAMPLES = (
    lambda: PublishedRouting(2, 8, 3, 4),
    lambda: PublishedRouting(2, 8, 2, 5, pattern=Full(), norm="none", eps=1e-5),
    lambda: PublishedRouting(2, 8, 4, 2),
)
BREAKS = {
    "chunk": "the published form takes a fixed number of tokens for each cluster, from whatever a call holds",
    "peek": "a later token that fits a cluster better pushes an earlier one out of it",
    "merge": "a mean over clusters is no read of a set of keys: it has no lse",
}
COMPILES = True
