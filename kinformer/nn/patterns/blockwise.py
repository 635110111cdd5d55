"""Blockwise: each query block reads one key block, given by a permutation."""

from dataclasses import dataclass

from kinformer.core.checks import check_at_least, check_whole_numbers
from kinformer.core.pattern import Pattern, Spelled
from kinformer.core.patterns.blocks import Blocks


@dataclass(frozen=True)
class Blockwise(Spelled):
    """Blockwise attention: the queries of a block read the keys of one block, given by a permutation.

    j // size = permutation[i // size]

    Choose it for BlockBERT, which gives each head a permutation: `Heads(Blockwise(..), ..)`. Queries in blocks beyond
    the permutation read nothing, and keys there are not read.

    permutation: key block that each query block reads.
    size: number of positions in a block.

    Errors: ValueError if the permutation does not hold each block number once.
    Source: Qiu et al., 2019, arXiv:1911.02972, section 3.
    """

    permutation: tuple[int, ...]
    size: int

    def __post_init__(self) -> None:
        check_at_least("Blockwise.size", self.size, 1)
        if sorted(check_whole_numbers("Blockwise.permutation", self.permutation, 0)) != list(
            range(len(self.permutation))
        ):
            raise ValueError(f"{self}: permutation must contain each of 0..{len(self.permutation) - 1} once")

    @property
    def expression(self) -> Pattern:
        return Blocks(tuple((block,) for block in self.permutation), self.size)


EXAMPLES = (Blockwise((1, 2, 0), 4), Blockwise((0, 1), 5))
