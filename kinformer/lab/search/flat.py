"""Flat: exact search by FAISS that compares every vector in memory."""

from dataclasses import dataclass

from kinformer.lab.search.support.faiss import FaissSearch


@dataclass(frozen=True)
class Flat(FaissSearch):
    """Exact search by FAISS that compares every vector in memory, in float32 (extra faiss).

    Choose it if the vectors fit into memory and speed matters more than the last digit. Distances are exact, but any of
    several vectors that are equally near within rounding may be returned. `ExactSearch` needs neither the package nor
    the memory.

    Errors: ValueError if the package is not installed.
    Source: Douze et al., 2024, arXiv:2401.08281.
    """

    def factory(self, count: int, width: int) -> str:
        return "Flat"
