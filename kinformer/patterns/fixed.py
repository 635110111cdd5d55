"""Fixed: the own block, and the summary columns of all blocks."""

from dataclasses import dataclass

from kinformer.core.pattern import Pattern, Spelled
from kinformer.patterns.block import Block
from kinformer.patterns.columns import Columns


@dataclass(frozen=True)
class Fixed(Spelled):
    """j // block = i // block, or j is among the last `summary` positions of its block.

    The fixed pattern of the Sparse Transformer is `Causal() & Fixed(block, summary)`; it suits text better than a
    stride does.

    block: positions of a block.
    summary: how many at its end are read by all.

    Source: Child et al., 2019, arXiv:1904.10509, section 4.2.
    """

    block: int
    summary: int

    def __post_init__(self) -> None:
        Columns(self.block, self.summary)  # refuses what does not fit

    @property
    def expression(self) -> Pattern:
        return Block(self.block) | Columns(self.block, self.summary)


EXAMPLES = (Fixed(4, 1), Fixed(5, 2))
