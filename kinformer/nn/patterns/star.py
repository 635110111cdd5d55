"""Star: tokens that read their neighbours, and a relay token that reads all and is read by all."""

from dataclasses import dataclass

from kinformer.core.checks import check_at_least
from kinformer.core.pattern import Pattern, Spelled
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.tokens import Tokens


@dataclass(frozen=True)
class Star(Spelled):
    """Star-Transformer's pattern: tokens read their neighbours and a relay token; the relay reads all.

    i = 0 or j = 0 or |i - j| <= 1

    Position 0 is the relay; the other tokens are called satellites. If n is given, satellites 1 and n also read each
    other, which closes the ring. Positions beyond n then read nothing and are not read. Without n, the satellites are
    an open row of any length.

    Choose it to connect any two tokens in two layers, with about four keys for each query. The model `star_transformer`
    instead has a relay outside the text, and closes the ring at the end of each row.

    n: number of satellites in a closed ring; None for an open row of any length.

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
        # the two pairs that close the ring, and two that the row already has
        closing = Rows((1, self.n)) & Tokens((1, self.n))
        return (row | closing) & Rows(self.n + 1) & Tokens(self.n + 1)


EXAMPLES = (Star(), Star(5), Star(1))
