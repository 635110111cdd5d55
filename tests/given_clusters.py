"""Clusters of queries that a test gives, and what a mechanism reads of a golden with those that it gives."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.nn.mechanisms.hamming_kmeans import Grouping
from tests.parity.goldens import Golden


class Given(Grouping):
    """Clusters that are known beforehand."""

    def __init__(self, cluster: Int[Tensor, "B H T"], clusters: int):
        super().__init__()
        self.cluster, self.clusters = cluster, clusters

    def forward(self, q: Float[Tensor, "B H T K"], pos: Int[Tensor, "B #H T"]) -> Int[Tensor, "B H T"]:
        return self.cluster


def clusters_of(golden: Golden) -> Given:
    """Those of a golden, where a query that is padding is in cluster -1."""
    return Given(golden.tensors["clusters_of_queries"].clamp_min(0), golden.hyperparameters["clusters"])


def read(mechanism: Clustered, golden: Golden) -> Float[Tensor, "B T H V"]:
    """What it reads of a golden's queries, keys and values [B T H n]; there may be `lengths` of keys."""
    q, k, v = (golden.tensors[name].transpose(1, 2) for name in "QKV")
    q_pos, k_pos = (torch.arange(x.shape[2]).expand(len(x), -1) for x in (q, k))
    q_pos = q_pos.where((golden.tensors["clusters_of_queries"] >= 0).any(1), -1)
    if "lengths" in golden.tensors:
        k_pos = k_pos.where(k_pos < golden.tensors["lengths"][:, None], -1)
    keys = Keys(k, v, k_pos[:, None], own=q.shape[2] == k.shape[2])
    return mechanism(Queries(q, q_pos[:, None]), keys, None, Context(q_pos)).y.y.transpose(1, 2)
