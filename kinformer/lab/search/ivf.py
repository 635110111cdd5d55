"""IVF: each vector is in the list of its nearest centre; a query searches only near lists, by FAISS."""

from dataclasses import dataclass
from typing import Any, ClassVar

from kinformer.core.checks import check_at_least
from kinformer.lab.search.support.faiss import FaissSearch, number_of_lists, package


@dataclass(frozen=True)
class IVF(FaissSearch):
    """Search in lists of vectors around k-means centres; a query searches the nearest (extra faiss).

    Choose it for large stores in memory that are built in seconds. With sqrt(n) lists of n vectors, a query is compared
    with about probes * sqrt(n) vectors, in float32.

    lists: number of lists, each with one centre; None takes about sqrt(n). It is at most n / 39, so that each centre is
        trained on enough vectors.
    probes: number of lists that a query searches.

    Errors: ValueError if a number is out of range, or if FAISS is not installed (`pip install '.[faiss]'`).
    Source: Sivic and Zisserman, 2003, doi:10.1109/ICCV.2003.1238663, "Video Google"; Jegou et al., 2011,
    doi:10.1109/TPAMI.2010.57.
    """

    learns: ClassVar[bool] = True
    lists: int | None = None
    probes: int = 8

    def __post_init__(self) -> None:
        if self.lists is not None:
            check_at_least("lists", self.lists, 1)
        check_at_least("probes", self.probes, 1)

    def factory(self, count: int, width: int) -> str:
        return f"IVF{number_of_lists(self.lists, count)},Flat"

    def search_parameters(self, index: Any, k: int) -> Any:
        return package(self.name).SearchParametersIVF(nprobe=min(self.probes, index.nlist))
