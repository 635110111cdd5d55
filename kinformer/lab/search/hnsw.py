"""HNSW: a graph in which near vectors are linked, walked towards the query, by FAISS."""

from dataclasses import dataclass
from typing import Any

from kinformer.core.checks import from_to
from kinformer.lab.search.support.faiss import FaissSearch, package


@dataclass(frozen=True)
class HNSW(FaissSearch):
    """A walk through a graph of neighbours, from few vectors far apart to many that are near (the extra faiss).

    Choose it for stores that are asked far more often than they change: a query looks at about log(n) vectors. It holds
    all of them in float32 in memory, with their links, and takes the longest to build.

    links: of each vector to others.
    effort: vectors that a walk keeps, k at least: more find more, and take longer.

    Errors: ValueError for numbers out of range, and where the package is not installed. Source: Malkov and Yashunin,
    2016, arXiv:1603.09320.
    """

    links: int = 32
    effort: int = 64

    def __post_init__(self) -> None:
        from_to("links", self.links, 2, 512), from_to("effort", self.effort, 1, 1 << 20)

    def factory(self, count: int, width: int) -> str:
        return f"HNSW{self.links}"

    def thoroughly(self, index: Any, k: int) -> Any:
        return package(self.name).SearchParametersHNSW(efSearch=max(self.effort, k))
