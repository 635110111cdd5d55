"""Prefix: keys of a prefix, read by all."""

from dataclasses import dataclass

from kinformer.core.checks import check_at_least
from kinformer.core.pattern import Pattern, Spelled
from kinformer.nn.patterns.tokens import Tokens


@dataclass(frozen=True)
class Prefix(Spelled):
    """j < n.

    With `Causal() | Prefix(n)` a prefix language model, whose first n tokens read each other in both directions.

    Source: Raffel et al., 2020, arXiv:1910.10683, section 3.2.1.
    """

    n: int

    def __post_init__(self) -> None:
        check_at_least("Prefix.n", self.n, 0)

    @property
    def expression(self) -> Pattern:
        return Tokens(self.n)


EXAMPLES = (Prefix(3),)
