"""Flat: exact search by FAISS that compares every vector in memory."""

from dataclasses import dataclass

from kinformer.lab.search.support.faiss import FaissSearch


@dataclass(frozen=True)
class Flat(FaissSearch):
    """Exact search by FAISS that compares every vector in memory, in float32 (extra faiss).

    Choose it if the vectors fit into memory and speed matters. Distances are exact. If the distances of several vectors
    differ only by rounding, any of them may be returned. `ExactSearch`, the exact search of this library, needs neither
    FAISS nor the memory.

    Errors: ValueError if FAISS is not installed (`pip install '.[faiss]'`).
    Source: Douze et al., 2024, arXiv:2401.08281.
    """

    def factory(self, count: int, width: int) -> str:
        return "Flat"
