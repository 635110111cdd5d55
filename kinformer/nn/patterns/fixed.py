"""Fixed: the query's block, and a few summary keys at the end of every block."""

from dataclasses import dataclass

from kinformer.core.pattern import Pattern, Spelled
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.columns import Columns


@dataclass(frozen=True)
class Fixed(Spelled):
    """Fixed pattern of the Sparse Transformer: the query's block and the last keys of every block.

    j // block = i // block or block - offset - summary <= j mod block < block - offset

    The Sparse Transformer uses `Causal() & Fixed(block, summary)`. Choose it for text; `Strided` is for data with a
    period, such as images. The paper found the quality highest if heads read different summaries: `Causal() &
    Heads(Fixed(128, 8), Fixed(128, 8, 8))`.

    block: number of positions in a block.
    summary: number of summary keys, positions of each block that all queries read; the paper's c, 8 to 32 for blocks of
        128 or 256.
    offset: number of positions between the summary keys and the end of their block.

    Errors: ValueError if summary + offset > block.
    Source: Child et al., 2019, arXiv:1904.10509, section 4.3.
    """

    block: int
    summary: int
    offset: int = 0

    def __post_init__(self) -> None:
        Columns(self.block, self.summary, self.offset)  # checks that the summary fits into the block

    @property
    def expression(self) -> Pattern:
        return Block(self.block) | Columns(self.block, self.summary, self.offset)


EXAMPLES = (Fixed(4, 1), Fixed(5, 2, 1))
