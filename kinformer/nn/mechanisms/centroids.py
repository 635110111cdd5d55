"""Centroids: unit vectors that follow the queries and keys nearest to them, by online k-means."""

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
    """Unit vectors for each head that follow their nearest queries and keys: online spherical k-means.

    mu = unit(decay mu + (1 - decay) seen)

    Each training step updates the centroids. A cluster that gets no queries or keys keeps its centroid. Centroids are
    buffers, so the optimizer does not change them. The routing mechanisms use this part.

    heads: number of heads; each head has its own clusters.
    k_dim: width of the vectors that are clustered.
    clusters: number of centroids per head.
    decay: decay of the moving average; 0.999 in the paper.
    update: how `seen` is computed. With "sum", as in the paper, it is half the sum of the directions of all queries and
        keys of the cluster. With "direction", as in the published PyTorch code, this sum is scaled to length 1.
        Centroids then move some hundred times less.
    seed: seed of the first centroids, which are saved in checkpoints.

    Source: Roy et al., 2020, arXiv:2003.05997, section 4.1; the routing-transformer package (P. Wang, 2020).

    Differences: the authors' code divides a moving sum by a moving count and leaves the length of the centroids free.
    This class does not offer that update.
    """

    mu: Float[Tensor, "H C K"]

    def __init__(self, heads: int, k_dim: int, clusters: int, decay: float, update: Update, seed: int):
        super().__init__()
        check_at_least("clusters", clusters, 1)
        self.decay, self.update = check_in_range("decay", decay, 0, 1), check_option("update", update, Update)
        draw = torch.Generator().manual_seed(check_whole_number("seed", seed))
        self.register_buffer("mu", unit(torch.randn(heads, clusters, k_dim, generator=draw)))

    def similarities(self, x: Float[Tensor, "B G T K"]) -> Float[Tensor, "B H T C"]:
        """Return the dot product of each vector x, scaled to length 1, with each centroid of its heads.

        If several query heads share a key head, its keys are compared with the centroids of each of them.
        """
        directions = unit(at_least_float32(x))
        mu = self.mu.to(directions.dtype).unflatten(0, (x.shape[1], -1))  # [G H/G C K]
        with disable_autocast(x):  # autocast would round the float32 directions again
            return torch.einsum("bgtk,ghck->bghtc", directions, mu).flatten(1, 2)

    def assign_clusters(self, x: Float[Tensor, "B G T K"]) -> Int[Tensor, "B H T"]:
        """Return the number of the most similar centroid of each vector x, for each head."""
        with torch.no_grad():
            return choice(lambda: self.similarities(x).argmax(-1))

    def distance(self, x: Float[Tensor, "B H T K"], cluster: Int[Tensor, "B H T"]) -> Float[Tensor, "B T"]:
        """Return the mean squared difference between each direction x (length 1) and its cluster's centroid.

        The mean runs over the heads and the components of the vectors.
        """
        centroid = self.mu.to(x.dtype)[torch.arange(len(self.mu), device=x.device)[:, None], cluster]  # [B H T K]
        return (x - centroid).square().mean((1, 3))

    @torch.no_grad()
    def sums(
        self, x: Float[Tensor, "B H T K"], cluster: Int[Tensor, "B H T"], real: Bool[Tensor, "B #H T"]
    ) -> Float[Tensor, "H C K"]:
        """Return the sum of the directions x (length 1) in each cluster, without padding."""
        heads, clusters, width = self.mu.shape
        place = cluster + clusters * torch.arange(heads, device=x.device)[:, None]
        place = place.where(real, heads * clusters)  # padding adds to one extra row, which is dropped
        sums = x.new_zeros(heads * clusters + 1, width).index_add_(0, place.flatten(), x.reshape(-1, width))
        return sums[:-1].view(heads, clusters, width)

    def update_average(self, sums: Float[Tensor, "H C K"]) -> Float[Tensor, "H C K"]:
        """Return the centroids' moving average after one more training step, before it is scaled to length 1.

        sums: sums of the directions in each cluster, from the method `sums`.
        """
        is_used = (sums != 0).any(-1, keepdim=True)
        old = at_least_float32(self.mu)
        average = unit(sums.to(old)) if self.update == "direction" else sums.to(old) / 2
        return torch.where(is_used, self.decay * old + (1 - self.decay) * average, old)

    @torch.no_grad()
    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        if "clusters" in stats:
            self.mu.copy_(unit(self.update_average(stats["clusters"])))
