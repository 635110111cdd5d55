"""Centroids: directions that follow those of what is near them, by online k-means."""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.checks import check_at_least, check_in_range, check_option, check_whole_number
from kinformer.core.choice import choice
from kinformer.core.unit_vector import unit

Update = Literal["sum", "direction"]


class Centroids(nn.Module):
    """`clusters` directions per head, which follow those that are nearest to them: online spherical k-means.

    mu = unit(decay mu + (1 - decay) seen) after each step; a cluster that saw none stays. They are no parameters.

    heads: each has clusters of its own.
    k_dim: the width of what is clustered.
    clusters: how many centroids a head has.
    decay: of the moving average; the paper's is 0.999.
    update: "sum" has seen half the sum of the directions of all queries and keys of the cluster, the paper's;
        "direction" that sum at length 1, the published PyTorch code's, by which centroids move some hundred times less.
        The authors' code, which divides a moving sum by a moving count and leaves the length free, is not here.
    seed: draws the first centroids, which are saved.

    Source: Roy et al., 2020, arXiv:2003.05997, section 4.1; the routing-transformer package (P. Wang, 2020).
    """

    mu: Float[Tensor, "H C K"]

    def __init__(self, heads: int, k_dim: int, clusters: int, decay: float, update: Update, seed: int):
        super().__init__()
        check_at_least("clusters", clusters, 1)
        self.decay, self.update = check_in_range("decay", decay, 0, 1), check_option("update", update, Update)
        draw = torch.Generator().manual_seed(check_whole_number("seed", seed))
        self.register_buffer("mu", unit(torch.randn(heads, clusters, k_dim, generator=draw)))

    def similarities(self, x: Float[Tensor, "B G T K"]) -> Float[Tensor, "B H T C"]:
        """The product of each direction with each centroid; a head of keys has those of the query heads it serves."""
        directions = unit(at_least_float32(x))
        mu = self.mu.to(directions.dtype).unflatten(0, (x.shape[1], -1))  # [G H/G C K]
        with disable_autocast(x):  # or it would round what was just made precise
            return torch.einsum("bgtk,ghck->bghtc", directions, mu).flatten(1, 2)

    def assign_clusters(self, x: Float[Tensor, "B G T K"]) -> Int[Tensor, "B H T"]:
        """Each vector's cluster."""
        with torch.no_grad():
            return choice(lambda: self.similarities(x).argmax(-1))

    def distance(self, x: Float[Tensor, "B H T K"], cluster: Int[Tensor, "B H T"]) -> Float[Tensor, "B T"]:
        """The mean squared difference of a direction x and the centroid of its cluster, over numbers and heads."""
        centroid = self.mu.to(x.dtype)[torch.arange(len(self.mu), device=x.device)[:, None], cluster]  # [B H T K]
        return (x - centroid).square().mean((1, 3))

    @torch.no_grad()
    def sums(
        self, x: Float[Tensor, "B H T K"], cluster: Int[Tensor, "B H T"], real: Bool[Tensor, "B #H T"]
    ) -> Float[Tensor, "H C K"]:
        """The sum of the directions x of each cluster."""
        heads, clusters, width = self.mu.shape
        place = cluster + clusters * torch.arange(heads, device=x.device)[:, None]
        place = place.where(real, heads * clusters)  # padding goes into a row of its own
        sums = x.new_zeros(heads * clusters + 1, width).index_add_(0, place.flatten(), x.reshape(-1, width))
        return sums[:-1].view(heads, clusters, width)

    def update_average(self, sums: Float[Tensor, "H C K"]) -> Float[Tensor, "H C K"]:
        """The moving average after one more step, not yet at length 1."""
        is_used = (sums != 0).any(-1, keepdim=True)
        old = at_least_float32(self.mu)
        average = unit(sums.to(old)) if self.update == "direction" else sums.to(old) / 2
        return torch.where(is_used, self.decay * old + (1 - self.decay) * average, old)

    @torch.no_grad()
    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        if "clusters" in stats:
            self.mu.copy_(unit(self.update_average(stats["clusters"])))
