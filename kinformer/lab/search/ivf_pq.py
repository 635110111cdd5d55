"""IVF-PQ: lists of vectors around centres, with each vector stored in a few bytes, by FAISS."""

from dataclasses import dataclass
from typing import ClassVar

from kinformer.core.checks import check_at_least
from kinformer.lab.search.ivf import IVF
from kinformer.lab.search.support.faiss import CODES, ENOUGH, FEWEST, number_of_lists


@dataclass(frozen=True)
class IVFPQ(IVF):
    """`IVF` search with compressed vectors: a vector is cut into pieces, each stored as a short code.

    Choose it if the vectors do not fit into memory. A code is the number of the centre nearest to the piece (product
    quantisation). A vector takes `codes` bytes of memory, or half as many below 9,984 vectors. For each requested
    vector, the codes select four candidates, which are ranked by exact distances to the vectors on the disk. This is
    the index of the kNN-LM paper.

    lists, probes: as for `IVF`.
    codes: number of pieces of a vector; it must divide the width of the vectors.

    Errors: ValueError if the codes do not divide the width, if there are too few vectors to learn codes from, or if
    FAISS is not installed (`pip install '.[faiss]'`).
    Source: Jegou et al., 2011, doi:10.1109/TPAMI.2010.57; Khandelwal et al., 2019, arXiv:1911.00172, section 3.
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
            raise ValueError(f"ivf_pq needs at least {FEWEST} vectors to learn codes, got {count}; use 'exact'")
        bits = 8 if count >= CODES * ENOUGH else 4
        return f"IVF{number_of_lists(self.lists, count)},PQ{self.codes}x{bits}"
