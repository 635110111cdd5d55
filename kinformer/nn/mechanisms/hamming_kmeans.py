"""Hamming k-means: queries in clusters of like hashes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.checks import check_at_least, check_flag, check_whole_number
from kinformer.nn.maps.random_features import next_draw_seed

__all__ = ["Grouping", "HammingKMeans"]


class Grouping(nn.Module, ABC):
    """Which of `clusters` clusters each query of a row and head is in. Write one to give clusters of your own.

    What it says of a query may depend on the queries of its own row and head alone, and on none that is padding.
    """

    clusters: int

    @abstractmethod
    def forward(self, q: Float[Tensor, "B H T K"], pos: Int[Tensor, "B #H T"]) -> Int[Tensor, "B H T"]:
        """From 0 to clusters - 1; anything at padding, where `pos` is -1."""

    def check(self, k_dim: int) -> None:
        """ValueError for queries of a width that it was not made for."""


class HammingKMeans(Grouping):
    """Lloyd's k-means over the signs of random projections of queries, in which far means many signs apart.

    b_i = [q_i . p_n > 0 for n in 1 .. bits];  c(i) = argmin_j |b_i - b^c_j|;  b^c_j = the majority of b_i over c(i) = j

    At first b^c_j is that of the row's query of rank floor(j n / clusters), n being its real ones: the authors' code
    takes the first ones. A bit of which as many are 0 as 1 is 0, and of clusters equally near the first is taken, as
    there. A cluster that nobody is in stays as it is, where the authors' code draws another at random; so a row's
    clusters are a function of the row. Where there are fewer queries than clusters, some stay empty.

    k_dim: the width of a query; projections are alike for all heads.
    clusters: of a row and head.
    bits: random projections; the paper's 63.
    iterations: how often queries are put into clusters; the paper's 10. Between two of them centroids move.
    bias: a query's hyperplanes need not go through 0, as in the authors' code, which adds a normal number to each
        projection.
    redraw: None keeps the projections: they are the seed's, and no part of a checkpoint, so that weights of any
        encoder fit. A number draws them anew after so many steps of training, and they are saved; 1 is nearest to the
        authors' code, which draws for each batch, also in evaluation.
    seed: of the draw.

    Errors: ValueError for queries of another width.

    Cost per row and head: iterations * T * clusters * bits. Source: Vyas et al., 2020, arXiv:2007.04825, section 3.2
    and supplement; the fast-transformers package.
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
                f"HammingKMeans was made for queries of width {self.k_dim} and got {k_dim}; make it with k_dim={k_dim}"
            )

    @torch.no_grad()
    def forward(self, q: Float[Tensor, "B H T K"], pos: Int[Tensor, "B #H T"]) -> Int[Tensor, "B H T"]:
        real = pos >= 0
        with disable_autocast(q):  # or it would round what was just made precise
            sign = self.signs(q)
            centre = sign.take_along_dim(self._initial_columns(pos)[..., None], 2)  # [B H C b]
            cluster = self._assign_clusters(sign, centre)
            for _ in range(self.iterations - 1):
                # of padding none is a member: a sum of votes, by a product, which is faster than adding rows up
                member = (cluster[..., None, :] == torch.arange(self.clusters, device=q.device)[:, None]) & real[
                    :, :, None
                ]
                vote = member.to(sign.dtype) @ sign
                centre = torch.where(member.any(-1, keepdim=True), torch.where(vote > 0, 1.0, -1.0), centre)
                cluster = self._assign_clusters(sign, centre)
        return cluster

    def signs(self, q: Float[Tensor, "B H T K"]) -> Float[Tensor, "B H T b"]:
        """1 and -1, in float32: products of them are exact."""
        wide = at_least_float32(q)
        planes = self.planes.to(wide.dtype)
        return torch.where(wide @ planes[:, :-1].mT + planes[:, -1] > 0, 1.0, -1.0)

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        """Count a step of training, and draw new projections where it is time."""
        if (seed := next_draw_seed(self.steps, self.redraw, self.seed)) is not None:
            self.planes.copy_(self._draw_directions(seed))

    def _assign_clusters(
        self, sign: Float[Tensor, "B H T b"], centre: Float[Tensor, "B H C b"]
    ) -> Int[Tensor, "B H T"]:
        """The cluster with the most signs in common, the first of equal ones."""
        return (sign @ centre.mT).argmax(-1)

    def _initial_columns(self, pos: Int[Tensor, "B #H T"]) -> Int[Tensor, "B #H C"]:
        """Columns of real queries that lie evenly over a row, in order of their positions."""
        real = pos >= 0
        order = pos.where(real, torch.iinfo(pos.dtype).max).argsort(dim=-1)
        rank = torch.arange(self.clusters, device=pos.device) * real.sum(-1, keepdim=True) // self.clusters
        return order.take_along_dim(rank, -1)

    def _draw_directions(self, seed: int) -> Float[Tensor, "b K1"]:
        """A line of normal numbers for each bit, the last of which is added; 0 without `bias`."""
        draw = torch.Generator().manual_seed(seed)
        planes = torch.randn(self.bits, self.k_dim + 1, generator=draw)
        planes[:, -1] *= self.bias
        return planes
