"""HNSW: search by a walk through a graph of neighbouring vectors towards the query, by FAISS."""

from dataclasses import dataclass
from typing import Any

from kinformer.core.checks import check_whole_between
from kinformer.lab.search.support.faiss import FaissSearch, package


@dataclass(frozen=True)
class HNSW(FaissSearch):
    """Search by a walk through a graph of neighbours, from distant vectors to near ones (extra faiss).

    Choose it for stores that are searched far more often than they change. A query is compared with about log(n) of n
    vectors. All vectors are in memory in float32, with their links. It takes longer to build than the other searches.

    links: number of links of each vector to its neighbours.
    effort: number of candidates that a walk keeps; more candidates find more of the nearest vectors and take longer. It
        is raised to the number of requested vectors.

    Errors: ValueError if a number is out of range, or if FAISS is not installed (`pip install '.[faiss]'`).
    Source: Malkov and Yashunin, 2016, arXiv:1603.09320.
    """

    links: int = 32
    effort: int = 64

    def __post_init__(self) -> None:
        check_whole_between("links", self.links, 2, 512), check_whole_between("effort", self.effort, 1, 1 << 20)

    def factory(self, count: int, width: int) -> str:
        return f"HNSW{self.links}"

    def search_parameters(self, index: Any, k: int) -> Any:
        return package(self.name).SearchParametersHNSW(efSearch=max(self.effort, k))
