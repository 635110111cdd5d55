"""Routing: a query reads the keys of its own cluster, clusters being learned by online k-means."""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.bias import ScoreFn
from kinformer.core.keyed import Keyed
from kinformer.core.layer import Context, Out, State
from kinformer.core.pattern import Pattern, narrowed
from kinformer.core.state import carry
from kinformer.execute import attend
from kinformer.mechanisms.lsh import no_additions, precise
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full
from kinformer.projections.shared_qk import unit

Norm = Literal["layer", "none"]
EPS = 1e-5  # added to the variance


class Centroids(nn.Module):
    """`clusters` directions per head, which follow those that are nearest to them: online spherical k-means.

    They are drawn from `seed`, saved, and no parameters: after each step, new = decay * old + (1 - decay) * the
    direction of the sum of all queries and keys of the cluster, at length 1; a cluster that got none stays.
    """

    mu: Float[Tensor, "H C K"]

    def __init__(self, heads: int, k_dim: int, clusters: int, decay: float, seed: int):
        super().__init__()
        if clusters < 1 or not 0 <= decay <= 1:
            raise ValueError(f"clusters={clusters}, decay={decay}: give at least 1 cluster, and a decay from 0 to 1")
        self.decay = decay
        draw = torch.Generator().manual_seed(seed)
        self.register_buffer("mu", unit(torch.randn(heads, clusters, k_dim, generator=draw)))

    def directions(self, x: Float[Tensor, "B G T K"]) -> Float[Tensor, "B H T K"]:
        """Vectors at length 1, a head of keys as often as heads of queries share it."""
        heads, _, k_dim = self.mu.shape
        if heads % x.shape[1] or k_dim != x.shape[3]:
            raise ValueError(
                f"Routing was made for {heads} heads of width {k_dim} and got {x.shape[1]} of width {x.shape[3]}; "
                f"make it with heads={x.shape[1]}, k_dim={x.shape[3]}"
            )
        return unit(precise(x)).repeat_interleave(heads // x.shape[1], 1)

    def similar(self, x: Float[Tensor, "B G T K"]) -> Float[Tensor, "B H T C"]:
        """The product of each direction with each centroid."""
        found = self.directions(x)
        return torch.einsum("bhtk,hck->bhtc", found, self.mu.to(found.dtype))

    def nearest(self, x: Float[Tensor, "B G T K"]) -> Int[Tensor, "B H T"]:
        """Each vector's cluster."""
        return self.similar(x).argmax(-1)

    def distance(self, x: Float[Tensor, "B G T K"]) -> Float[Tensor, "B T"]:
        """The mean squared difference of a direction and its centroid, over numbers and heads."""
        found = self.directions(x)
        own = self.mu.to(found.dtype)[torch.arange(len(self.mu), device=x.device)[:, None], self.nearest(x)]
        return (found - own).square().mean((1, 3))

    @torch.no_grad()
    def sums(self, x: Float[Tensor, "B G T K"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "H C K"]:
        """The sum of the directions of each cluster."""
        found = self.directions(x)
        member = F.one_hot(self.nearest(x), self.mu.shape[1]) * real[:, None, :, None]
        return torch.einsum("bhtc,bhtk->hck", member.to(found.dtype), found)

    def averaged(self, sums: Float[Tensor, "H C K"]) -> Float[Tensor, "H C K"]:
        """The moving average after one more batch."""
        some = (sums != 0).any(-1, keepdim=True)
        old = precise(self.mu)
        return self.decay * old + (1 - self.decay) * torch.where(some, unit(sums.to(old)), old)

    @torch.no_grad()
    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        if "clusters" in stats:
            self.mu.copy_(unit(self.averaged(stats["clusters"])))


class Routed(Keyed):
    """What both forms of routing share: norms, centroids, a cache of keys, the commitment and the statistics."""

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
        seed: int = 0,
    ):
        super().__init__()
        if norm not in ("layer", "none"):
            raise ValueError(f"norm={norm!r} is not known; choose 'layer' or 'none'")
        self.centroids = Centroids(heads, k_dim, clusters, decay, seed)
        self.pattern, self.scale, self.norm = pattern or Causal(), scale, norm

    def normed(self, x: Float[Tensor, "B H T K"]) -> Float[Tensor, "B H T K"]:
        """Queries or keys as they are clustered and multiplied."""
        if self.norm == "none":
            return x
        wide, width = precise(x), x.shape[-1]
        return (unit(wide - wide.mean(-1, keepdim=True), EPS * width) * math.sqrt(width)).to(x.dtype)

    def commitment(
        self, q: Float[Tensor, "B H T K"], k: Float[Tensor, "B G S K"], k_pos: Int[Tensor, "B S"], ctx: Context
    ) -> dict[str, Tensor]:
        """Half the distance of each token's query to its centroid and half that of its key."""
        return {"commitment": (self.centroids.distance(q) + self.centroids.distance(own(k, k_pos, ctx))) / 2}

    def statistics(
        self, q: Float[Tensor, "B H T K"], k: Float[Tensor, "B G S K"], k_pos: Int[Tensor, "B S"], ctx: Context
    ) -> dict[str, Tensor]:
        """In training, the sums by which the centroids move."""
        if not self.training:
            return {}
        real = ctx.pos >= 0
        return {"clusters": self.centroids.sums(q, real) + self.centroids.sums(own(k, k_pos, ctx), real)}


class Routing(Routed):
    """Softmax attention over S_i = the keys whose nearest centroid is that of query i.

    Choose it where few keys, found by content, carry the attention, and the clusters should be learned; beside local
    heads, as in the paper: `SplitHeads(Softmax(Causal() & Band(64)), Routing(...))`. Clusters are read whole and a
    token's own vector alone decides on its cluster: so cuts, padding and what comes later change nothing, and it
    decodes with a cache of keys (`PublishedRouting` is the paper's balanced form). With `projection=SharedQK(d, heads)`
    a causal token always reads itself; otherwise a query may read nothing. This form is dense; it says what is read.

    Queries and keys are layer-normalised without gain and bias; `norm="none"` multiplies them as they are. Centroids
    move after each step, by a moving average with `decay`, of what training read; evaluation and recomputation move
    nothing. aux "commitment" is for `losses.commitment`. `heads` are those of the queries; `scale` is 1/sqrt(K) unless
    given. A vector near a border may change its cluster when its precision changes.

    Errors: NoState from `start` where the pattern reads ahead; ValueError with `ctx.also`, and for keys of another
    sequence. Source: Roy et al., 2020, arXiv:2003.05997, section 4.
    """

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
        read = attend(
            q,
            k,
            v,
            q_pos=ctx.pos[:, None],
            k_pos=k_pos[:, None],
            pattern=self.pattern,
            bias=SameCluster(self.centroids.nearest(q), self.centroids.nearest(k)),
            scale=self.scale,
            ctx=ctx,
        )
        return Out(read, kept, aux, {}, stats)


class SameCluster:
    """A score term that shuts out the keys of other clusters."""

    def __init__(self, q_cluster: Int[Tensor, "B H T"], k_cluster: Int[Tensor, "B H S"]):
        self.q_cluster, self.k_cluster = q_cluster, k_cluster

    def __call__(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        q_pos: Int[Tensor, "B #H T"],
        k_pos: Int[Tensor, "B #H S"],
        *,
        scale: float,
        reach: tuple[float, float],
        ctx: Context | None,
        sides: Mapping[str, Tensor],
    ) -> ScoreFn:
        return lambda s, b, h, i, j: torch.where(self.q_cluster[b, h, i] == self.k_cluster[b, h, j], s, -torch.inf)


def own(k: Float[Tensor, "B G S K"], k_pos: Int[Tensor, "B S"], ctx: Context) -> Float[Tensor, "B G T K"]:
    """The keys of the tokens that ask, which stand at the end; ValueError for keys of another sequence."""
    first = k_pos.shape[1] - ctx.pos.shape[1]
    same = first >= 0
    if same and not torch.compiler.is_compiling():
        same = bool(((k_pos[:, first:] == ctx.pos) | (k_pos[:, first:] < 0)).all())
    if not same:
        raise ValueError("Routing clusters the queries and keys of one sequence and got keys of another; use Softmax")
    return k[:, :, first:]


EXAMPLES = (
    lambda: Routing(2, 8, 3, seed=2),
    lambda: Routing(2, 8, 2, pattern=Full(), norm="none", seed=1),
    lambda: Routing(2, 8, 1, scale=1.0),
)
COMPILES = True
