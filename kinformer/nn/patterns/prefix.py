"""Prefix: the first n keys, which every query reads."""

from dataclasses import dataclass

from kinformer.core.checks import check_at_least
from kinformer.core.pattern import Pattern, Spelled
from kinformer.nn.patterns.tokens import Tokens


@dataclass(frozen=True)
class Prefix(Spelled):
    """Prefix keys: every query reads the first n keys.

    j < n

    Choose it for a prefix language model (one that reads a given text both ways, then writes): with `Causal() |
    Prefix(n)`, the first n tokens read each other in both directions.

    n: number of tokens in the prefix.

    Source: Raffel et al., 2019, arXiv:1910.10683, section 3.2.1.
    """

    n: int

    def __post_init__(self) -> None:
        check_at_least("Prefix.n", self.n, 0)

    @property
    def expression(self) -> Pattern:
        return Tokens(self.n)


EXAMPLES = (Prefix(3),)
