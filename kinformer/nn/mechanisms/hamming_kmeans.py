"""HammingKMeans: clusters of queries with similar hashes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.checks import check_at_least, check_flag, check_whole_number
from kinformer.core.keyword_hints import KeywordHints
from kinformer.nn.maps.random_features import next_draw_seed

__all__ = ["Grouping", "HammingKMeans"]


class Grouping(nn.Module, KeywordHints, ABC):
    """Base class of parts that assign the queries of each row and head to clusters.

    Subclass it to define your own clusters.
    The cluster of a query may depend only on the queries of its own row and head, and not on padding.
    """

    clusters: int

    @abstractmethod
    def forward(self, q: Float[Tensor, "B H T K"], pos: Int[Tensor, "B #H T"]) -> Int[Tensor, "B H T"]:
        """Return the cluster of each query, 0 to clusters - 1; any number at padding. A subclass defines it.

        q: queries, [B, H, T, K].
        pos: positions of the queries, [B, #H, T]; -1 for padding.
        """

    def check(self, k_dim: int) -> None:
        """Raise ValueError if `k_dim` is not the width of query that this part expects."""


class HammingKMeans(Grouping):
    """Lloyd's k-means over the signs of random projections of queries, with the Hamming distance.

    b_i = [q_i . p_n > 0 for n in 1 .. bits];  c(i) = argmin_j |b_i - b^c_j|;  b^c_j = the majority of b_i over c(i) = j

    Use it as the grouping of `Clustered` and `ImprovedClustered`. Centroid j starts as the bits of the row's query of
    rank floor(j n / clusters), for n real queries. A bit with equal votes becomes 0, and the first of several nearest
    clusters wins, as in the authors' code. An empty cluster keeps its centroid, so the clusters of a row depend only
    on the row. If a row has fewer queries than clusters, some clusters stay empty. The cost per row and head is
    iterations * T * clusters * bits.

    k_dim: width of a query; all heads share the projections.
    clusters: number of clusters for each row and head.
    bits: number of random projections; 63 in the paper.
    iterations: number of times that queries are assigned to clusters; 10 in the paper. Centroids move in between.
    bias: True adds a random normal number to each projection, as the authors' code does, so that the hyperplanes need
        not contain 0.
    redraw: None keeps the projections. They follow from the seed and are not saved, so checkpoints of any encoder fit.
        A number draws new projections after that many training steps and saves them. 1 is closest to the authors'
        code.
    seed: seed of the projections.

    Errors: ValueError for queries of another width.

    Source: Vyas et al., 2020, arXiv:2007.04825, section 3.2 and supplement; the fast-transformers package.

    Differences: the authors' code starts with the first queries of a row, draws a random centroid for an empty
    cluster, and draws new projections for each batch, also in evaluation.
    """

    planes: Float[Tensor, "b K1"]
    steps: Int[Tensor, ""]

    def __init__(
        self,
        k_dim: int,
        clusters: int = 25,
        *,
        bits: int = 63,
        iterations: int = 10,
        bias: bool = False,
        redraw: int | None = None,
        seed: int = 0,
    ):
        super().__init__()
        self.k_dim, self.clusters = check_at_least("k_dim", k_dim, 1), check_at_least("clusters", clusters, 1)
        self.bits, self.iterations = check_at_least("bits", bits, 1), check_at_least("iterations", iterations, 1)
        self.bias = check_flag("bias", bias)
        self.redraw, self.seed = (
            None if redraw is None else check_at_least("redraw", redraw, 1),
            check_whole_number("seed", seed),
        )
        drawn_anew = self.redraw is not None
        self.register_buffer("planes", self._draw_directions(seed), persistent=drawn_anew)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=drawn_anew)

    def check(self, k_dim: int) -> None:
        if k_dim != self.k_dim:
            raise ValueError(
                f"HammingKMeans was made for queries of width {self.k_dim}, but got {k_dim}. Create it with "
                f"k_dim={k_dim}"
            )

    @torch.no_grad()
    def forward(self, q: Float[Tensor, "B H T K"], pos: Int[Tensor, "B #H T"]) -> Int[Tensor, "B H T"]:
        real = pos >= 0
        with disable_autocast(q):  # autocast would round the float32 queries again
            sign = self.signs(q)
            centre = sign.take_along_dim(self._initial_columns(pos)[..., None], 2)  # [B H C b]
            cluster = self._assign_clusters(sign, centre)
            for _ in range(self.iterations - 1):
                # padding is no member; a matrix product sums the votes faster than an index_add
                member = (cluster[..., None, :] == torch.arange(self.clusters, device=q.device)[:, None]) & real[
                    :, :, None
                ]
                vote = member.to(sign.dtype) @ sign
                centre = torch.where(member.any(-1, keepdim=True), torch.where(vote > 0, 1.0, -1.0), centre)
                cluster = self._assign_clusters(sign, centre)
        return cluster

    def signs(self, q: Float[Tensor, "B H T K"]) -> Float[Tensor, "B H T b"]:
        """Return the hash bits of the queries as 1 or -1, in float32 or wider for exact products."""
        wide = at_least_float32(q)
        planes = self.planes.to(wide.dtype)
        return torch.where(wide @ planes[:, :-1].mT + planes[:, -1] > 0, 1.0, -1.0)

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Count a training step, and draw new projections when they are due."""
        if (seed := next_draw_seed(self.steps, self.redraw, self.seed)) is not None:
            self.planes.copy_(self._draw_directions(seed))

    def _assign_clusters(
        self, sign: Float[Tensor, "B H T b"], centre: Float[Tensor, "B H C b"]
    ) -> Int[Tensor, "B H T"]:
        """Return the cluster with the most equal signs; the first one if several are equal."""
        return (sign @ centre.mT).argmax(-1)

    def _initial_columns(self, pos: Int[Tensor, "B #H T"]) -> Int[Tensor, "B #H C"]:
        """Return columns of real queries that are evenly spaced in the order of their positions."""
        real = pos >= 0
        order = pos.where(real, torch.iinfo(pos.dtype).max).argsort(dim=-1)
        rank = torch.arange(self.clusters, device=pos.device) * real.sum(-1, keepdim=True) // self.clusters
        return order.take_along_dim(rank, -1)

    def _draw_directions(self, seed: int) -> Float[Tensor, "b K1"]:
        """Draw one row of normal numbers per bit; the last number is the bias, 0 without `bias`."""
        draw = torch.Generator().manual_seed(seed)
        planes = torch.randn(self.bits, self.k_dim + 1, generator=draw)
        planes[:, -1] *= self.bias
        return planes
