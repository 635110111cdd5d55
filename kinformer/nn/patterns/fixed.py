"""Fixed: the own block, and the summary columns of all blocks."""

from dataclasses import dataclass

from kinformer.core.pattern import Pattern, Spelled
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.columns import Columns


@dataclass(frozen=True)
class Fixed(Spelled):
    """j // block = i // block, or j is among `summary` positions near the end of its block.

    The fixed pattern of the Sparse Transformer is `Causal() & Fixed(block, summary)`; it suits text better than a
    stride does. The paper found it best where heads read summaries of their own:
    `Causal() & Heads(Fixed(128, 8), Fixed(128, 8, 8))`.

    block: positions of a block.
    summary: how many of them are read by all; the paper's c, 8 to 32 of 128 or 256.
    offset: how many positions before the block's end they lie.

    Source: Child et al., 2019, arXiv:1904.10509, section 4.3.
    """

    block: int
    summary: int
    offset: int = 0

    def __post_init__(self) -> None:
        Columns(self.block, self.summary, self.offset)  # refuses what does not fit

    @property
    def expression(self) -> Pattern:
        return Block(self.block) | Columns(self.block, self.summary, self.offset)


EXAMPLES = (Fixed(4, 1), Fixed(5, 2, 1))
