"""Star: a ring of satellites around a relay, which reads all and is read by all."""

from dataclasses import dataclass

from kinformer.core.checks import check_at_least
from kinformer.core.pattern import Pattern, Spelled
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.tokens import Tokens


@dataclass(frozen=True)
class Star(Spelled):
    """Position 0 is the relay: i = 0, or j = 0, or |i - j| <= 1. With n satellites also between the 1st and the n-th.

    A row of any length, its ends open, or a closed ring of n satellites; beyond position n nothing is read then. Two
    layers of it join any two tokens, with about four keys a query. `star_transformer` reads it with a relay outside the
    text, whose ring closes where each row ends.

    n: how many satellites make a closed ring; an open row of any length unless given.

    Source: Guo et al., 2019, arXiv:1902.09113, section 3.1; figure 5 of Lin et al., 2021, arXiv:2106.04554.
    """

    n: int | None = None

    def __post_init__(self) -> None:
        check_at_least("Star.n", 1 if self.n is None else self.n, 1)

    @property
    def expression(self) -> Pattern:
        row = Band(1) | Tokens(1) | Rows(1)
        if self.n is None:
            return row
        closing = Rows((1, self.n)) & Tokens((1, self.n))  # the two pairs, and two that the row has
        return (row | closing) & Rows(self.n + 1) & Tokens(self.n + 1)


EXAMPLES = (Star(), Star(5), Star(1))
