"""Patterns as a user writes them."""

import pytest

from kinformer.core.expression import parse
from kinformer.core.patterns.full import Full
from kinformer.pages.pictures.support.spelled import longest, spelled


@pytest.mark.parametrize("text", ["Causal() & (Band(64) | Tokens(2))", "Heads(Full(), ~Block(4, 1))", "Fixed(8, 1)"])
def test_a_pattern_is_spelled_as_one_would_write_it(text: str) -> None:
    assert spelled(parse(text)) == text and parse(spelled(parse(text))) == parse(text)
    assert longest(Full()) == 0 and longest(parse("Band(3) & Random(2, 5, seed=99)")) == 5
