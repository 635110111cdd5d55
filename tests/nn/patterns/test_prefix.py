"""Prefix: every query reads key j where j < n."""

import pytest

from kinformer.core.pattern import Pattern
from kinformer.nn.patterns.prefix import Prefix
from kinformer.nn.patterns.tokens import Tokens
from tests.nn.patterns.compare import Reads, compare


def reads(n: int) -> Reads:
    return lambda b, h, i, j: j < n


@pytest.mark.parametrize("n", [0, 1, 5])
def test_all_queries_read_the_prefix(n: int) -> None:
    compare(Prefix(n), reads(n))


class OneMore(Prefix):
    @property
    def expression(self) -> Pattern:
        return Tokens(self.n + 1)


def test_a_prefix_that_is_one_too_long_is_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 5"):
        compare(OneMore(5), reads(5))
