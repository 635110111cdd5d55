"""Flat: every vector, in memory, by FAISS."""

from dataclasses import dataclass

from kinformer.lab.search.support.faiss import FaissSearch


@dataclass(frozen=True)
class Flat(FaissSearch):
    """All vectors in float32 in memory, all of them looked at, by FAISS (the extra faiss).

    Choose it where the vectors fit into memory and speed matters more than the last digit: distances are exact, and of
    vectors that are equally near to rounding any is found. `ExactSearch` needs neither the package nor the memory.

    Errors: ValueError where the package is not installed. Source: Douze et al., 2024, arXiv:2401.08281.
    """

    def factory(self, count: int, width: int) -> str:
        return "Flat"
