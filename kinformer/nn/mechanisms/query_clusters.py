"""QueryClusters: clusters of queries, their means, and tiles that hold queries of one cluster."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class ClusterTiles(NamedTuple):
    """Queries sorted by cluster and cut into N tiles of M places; a tile holds queries of one cluster.

    cluster: cluster of each tile, [B, H, N].
    column: index in the row of the query at each place, [B, H, N, M]; -1 for an empty place.
    place: place of each query among the N * M places of all tiles, [B, H, T]; N * M for padding.
    """

    cluster: Int[Tensor, "B H N"]
    column: Int[Tensor, "B H N M"]
    place: Int[Tensor, "B H T"]

    def spread(self, x: Float[Tensor, "B H N M n"]) -> Float[Tensor, "B H T n"]:
        """Move the results x at the places of the tiles back to their queries; padding gets 0."""
        last = x.shape[2] * x.shape[3]
        values = _take_rows(x.flatten(2, 3), self.place.clamp_max(last - 1))
        return values.masked_fill((self.place == last)[..., None], 0.0)


class QueryClusters(NamedTuple):
    """Assignment of the queries of each row and head to clusters, for clustered attention.

    cluster: cluster of each query, 0 to clusters - 1, and `clusters` at padding, [B, H, T].
    clusters: number of clusters.
    """

    cluster: Int[Tensor, "B H T"]
    clusters: int

    @classmethod
    def from_clusters(
        cls, cluster: Int[Tensor, "B H T"], real: Bool[Tensor, "B #H T"], clusters: int
    ) -> "QueryClusters":
        """Return the `QueryClusters` for numbers of clusters, which may be arbitrary at padding.

        cluster: cluster of each query, [B, H, T].
        real: False at padding, [B, #H, T].
        clusters: number of clusters.
        """
        return cls(cluster.where(real, clusters), clusters)

    def mean(self, x: Float[Tensor, "B H T n"]) -> Float[Tensor, "B H C n"]:
        """Return the mean of x over the queries of each cluster; 0 for an empty cluster."""
        index = self.cluster[..., None]
        total = x.new_zeros(*x.shape[:2], self.clusters + 1, x.shape[3]).scatter_add(2, index.expand_as(x), x)
        return total[:, :, :-1] / self.many[:, :, :-1, None].clamp_min(1)

    @property
    def many(self) -> Int[Tensor, "B H C1"]:
        """Number of queries in each cluster; the last entry counts padding."""
        zeros = self.cluster.new_zeros(*self.cluster.shape[:2], self.clusters + 1)
        return zeros.scatter_add(2, self.cluster, torch.ones_like(self.cluster))

    def spread(self, x: Float[Tensor, "B H C n"], nothing: float = 0.0) -> Float[Tensor, "B H T n"]:
        """Copy the result x of each cluster to all its queries; padding gets `nothing`."""
        values = _take_rows(x, self.cluster.clamp_max(self.clusters - 1))
        return values.masked_fill((self.cluster == self.clusters)[..., None], nothing)

    def tiles(self, parts: int) -> ClusterTiles:
        """Cut the queries into tiles of equal size; a cluster of average size fills `parts` tiles.

        The result has (parts + 1) * clusters tiles, enough for any sizes of clusters. They have about 1 + 1 / parts
        times as many places as there are queries.
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
    """Gather vectors with an index that is a view, because `take_along_dim` would copy and keep it."""
    return x.gather(2, at[..., None].expand(*at.shape, x.shape[3]))
