"""IVF-PQ: lists around centres, in which a vector is stored as a few bytes, by FAISS."""

from dataclasses import dataclass
from typing import ClassVar

from kinformer.core.checks import check_at_least
from kinformer.lab.search.ivf import IVF
from kinformer.lab.search.support.faiss import CODES, ENOUGH, FEWEST, number_of_lists


@dataclass(frozen=True)
class IVFPQ(IVF):
    """`IVF` with product quantisation: a vector is cut into `codes` pieces, and a piece is the number of a centre.

    Choose it if vectors do not fit into memory: it stores `codes` bytes per vector (half of that below 9,984 vectors).
    They select four candidates per result, which are ranked by exact distances to the vectors on the disk. This is the
    index of the kNN-LM paper.

    lists, probes: as of `IVF`.
    codes: pieces of a vector; they must divide its width.

    Errors: ValueError for codes that do not divide the width, for fewer vectors than codes can be learned from, and
    if the package is not installed. Source: Jegou et al., 2011, "Product quantization for nearest neighbor search";
    Khandelwal et al., 2020, arXiv:1911.00172, section 3.
    """

    candidates: ClassVar[int] = 4
    codes: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("codes", self.codes, 1)

    def factory(self, count: int, width: int) -> str:
        if width % self.codes:
            raise ValueError(f"codes={self.codes} does not divide vectors of width {width}; give a divisor of it")
        if 0 < count < FEWEST:
            raise ValueError(f"ivf_pq learns codes from {FEWEST} vectors at least, and got {count}; use 'exact'")
        bits = 8 if count >= CODES * ENOUGH else 4
        return f"IVF{number_of_lists(self.lists, count)},PQ{self.codes}x{bits}"
