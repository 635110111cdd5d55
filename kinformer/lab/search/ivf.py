"""IVF: lists of vectors around centres; a query reads the few nearest lists, by FAISS."""

from dataclasses import dataclass
from typing import Any, ClassVar

from kinformer.core.checks import check_at_least
from kinformer.lab.search.support.faiss import FaissSearch, number_of_lists, package


@dataclass(frozen=True)
class IVF(FaissSearch):
    """Search in lists of vectors around k-means centres; a query reads its nearest lists (extra faiss).

    Choose it for large stores in memory that are built in seconds. With sqrt(n) lists, a query compares about probes *
    sqrt(n) vectors, in float32.

    lists: number of centres. None takes about sqrt(n), and at most as many as n vectors can train.
    probes: lists that a query reads.

    Errors: ValueError if a number is out of range, or if the package is not installed.
    Source: Sivic and Zisserman, 2003, "Video Google"; Jegou et al., 2011, "Product quantization for nearest neighbor
    search".
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
