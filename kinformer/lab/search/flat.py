"""Flat: every vector is compared, in memory, by FAISS."""

from dataclasses import dataclass

from kinformer.lab.search.support.faiss import FaissSearch


@dataclass(frozen=True)
class Flat(FaissSearch):
    """Compare every vector with a query, in float32 and in memory, by FAISS (the extra faiss).

    Choose it if the vectors fit into memory and speed matters more than the last digit: distances are exact, but of
    vectors that are equally near within rounding, any may be returned. `ExactSearch` needs neither package nor memory.

    Errors: ValueError if the package is not installed. Source: Douze et al., 2024, arXiv:2401.08281.
    """

    def factory(self, count: int, width: int) -> str:
        return "Flat"
