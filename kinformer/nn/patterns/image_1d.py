"""Image1D: the 1D local attention of the Image Transformer."""

from dataclasses import dataclass

from kinformer.core.checks import check_at_least
from kinformer.core.pattern import Pattern, Spelled
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment


@dataclass(frozen=True)
class Image1D(Spelled):
    """1D local attention of the Image Transformer: the query's block and the positions before it.

    j <= i and j >= (i // block) * block - memory

    The pattern is `Causal() & Segment(block, memory)`. Choose it for any long sequence. In an image a query reads whole
    rows above it if the memory is long enough; with `Image2D` it reads parts of more rows with the same number of keys.

    block: number of positions in a query block, the paper's l_q.
    memory: number of positions before the block that all queries of the block read, the paper's l_m.

    Source: Parmar et al., 2018, arXiv:1802.05751, section 3.3.

    Differences: public code often uses a memory of one block.
    """

    block: int
    memory: int

    def __post_init__(self) -> None:
        check_at_least("Image1D.block", self.block, 1)
        check_at_least("Image1D.memory", self.memory, 0)

    @property
    def expression(self) -> Pattern:
        return Causal() & Segment(self.block, self.memory)


EXAMPLES = (Image1D(4, 3), Image1D(3, 0))
