"""QueryClusters: queries in clusters, their means, and tiles of queries of one cluster each."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class ClusterTiles(NamedTuple):
    """Queries in the order of their clusters, cut into tiles that hold queries of one cluster each.

    cluster: whose queries stand in each tile; column: which ones, -1 for none; place: where each query stands, and one
    place behind all tiles for padding.
    """

    cluster: Int[Tensor, "B H N"]
    column: Int[Tensor, "B H N M"]
    place: Int[Tensor, "B H T"]

    def spread(self, x: Float[Tensor, "B H N M n"]) -> Float[Tensor, "B H T n"]:
        """What queries have, out of their tiles; 0 at padding."""
        last = x.shape[2] * x.shape[3]
        values = _take_rows(x.flatten(2, 3), self.place.clamp_max(last - 1))
        return values.masked_fill((self.place == last)[..., None], 0.0)


class QueryClusters(NamedTuple):
    """The cluster of each query, 0 to clusters - 1, and `clusters` at padding."""

    cluster: Int[Tensor, "B H T"]
    clusters: int

    @classmethod
    def from_clusters(
        cls, cluster: Int[Tensor, "B H T"], real: Bool[Tensor, "B #H T"], clusters: int
    ) -> "QueryClusters":
        """Clusters that say anything at padding."""
        return cls(cluster.where(real, clusters), clusters)

    def mean(self, x: Float[Tensor, "B H T n"]) -> Float[Tensor, "B H C n"]:
        """Of the queries of each cluster; 0 of none."""
        index = self.cluster[..., None]
        total = x.new_zeros(*x.shape[:2], self.clusters + 1, x.shape[3]).scatter_add(2, index.expand_as(x), x)
        return total[:, :, :-1] / self.many[:, :, :-1, None].clamp_min(1)

    @property
    def many(self) -> Int[Tensor, "B H C1"]:
        """How many queries are in each cluster, the last number that of padding."""
        zeros = self.cluster.new_zeros(*self.cluster.shape[:2], self.clusters + 1)
        return zeros.scatter_add(2, self.cluster, torch.ones_like(self.cluster))

    def spread(self, x: Float[Tensor, "B H C n"], nothing: float = 0.0) -> Float[Tensor, "B H T n"]:
        """What clusters have, for each of their queries; `nothing` at padding."""
        values = _take_rows(x, self.cluster.clamp_max(self.clusters - 1))
        return values.masked_fill((self.cluster == self.clusters)[..., None], nothing)

    def tiles(self, parts: int) -> ClusterTiles:
        """Tiles `parts` of which are as long as a cluster is on average.

        However uneven clusters are, parts + 1 times as many tiles do, with 1 + 1 / parts times as many places as there
        are queries.
        """
        batch, heads, length = self.cluster.shape
        size, count = -(-length // (parts * self.clusters)), (parts + 1) * self.clusters
        many = self.many
        order = self.cluster.argsort(dim=-1, stable=True)
        of = self.cluster.take_along_dim(order, -1)
        used = -(-many[..., :-1] // size)
        end = used.cumsum(-1)  # [B H C]
        steps = torch.arange(length, device=order.device) - (many.cumsum(-1) - many).take_along_dim(of, -1)
        begin = (end - used).take_along_dim(of.clamp_max(self.clusters - 1), -1)
        place = (begin * size + steps).where(of < self.clusters, count * size)
        column = order.new_full((batch, heads, count * size + 1), -1).scatter(-1, place, order)[..., :-1]
        tile = torch.arange(count, device=order.device)
        cluster = (end[..., None, :] <= tile[:, None]).sum(-1).clamp_max(self.clusters - 1)
        return ClusterTiles(
            cluster, column.unflatten(-1, (count, size)), torch.empty_like(order).scatter(-1, order, place)
        )


def _take_rows(x: Float[Tensor, "B H P n"], at: Int[Tensor, "B H T"]) -> Float[Tensor, "B H T n"]:
    """Vectors at some places; the index is a view, which `take_along_dim` would write out and keep."""
    return x.gather(2, at[..., None].expand(*at.shape, x.shape[3]))
