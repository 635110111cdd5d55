"""Patterns as a user writes them."""

import pytest

from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.full import Full
from kinformer.pages.pictures.support.short_repr import largest_number, short_repr


@pytest.mark.parametrize("text", ["Causal() & (Band(64) | Tokens(2))", "Heads(Full(), ~Block(4, 1))", "Fixed(8, 1)"])
def test_a_pattern_is_spelled_as_one_would_write_it(text: str) -> None:
    assert short_repr(parse(text)) == text and parse(short_repr(parse(text))) == parse(text)
    assert largest_number(Full()) == 0 and largest_number(parse("Band(3) & Random(2, 5, seed=99)")) == 5
