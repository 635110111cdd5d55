"""Image1D: blocks of a picture in raster order, and what was before them."""

from dataclasses import dataclass

from kinformer.core.checks import check_at_least
from kinformer.core.pattern import Pattern, Spelled
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment


@dataclass(frozen=True)
class Image1D(Spelled):
    """j <= i, and j is in the query's block or among the `memory` positions before that: `Causal() & Segment(...)`.

    The 1D local attention of the Image Transformer. It sees whole rows above where the memory holds them, and suits
    any long row; `Image2D` sees more rows of the same number of keys.

    block: positions of a query block, the paper's l_q.
    memory: positions before it that all of its queries read, the paper's l_m; public code often has a block.

    Source: Parmar et al., 2018, arXiv:1802.05751, section 3.3.
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
