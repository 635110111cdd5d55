"""parse: from text to a pattern and back, and what it says of text that spells none."""

from dataclasses import dataclass

import pytest

from kinformer.core.pattern import Heads, Pattern
from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.blocks import Blocks
from kinformer.core.patterns.causal import Causal
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.patterns.tokens import Tokens

SPELLED = {
    "Causal() & (Band(64) | Strided(64))": Causal() & (Band(64) | Strided(64)),
    " Band(3, right=-1) ": Band(3, -1),
    "~Band(left=-1, right=2)": ~Band(-1, 2),
    "Heads(Causal(), Tokens((0, 5))) | Blocks(((0,), ()), 3)": Heads(Causal(), Tokens((0, 5))) | Blocks(((0,), ()), 3),
    "Random(2, symmetric=True)": Random(2, symmetric=True),
}


@pytest.mark.parametrize("text", SPELLED)
def test_text_is_the_pattern_and_its_repr_is_again(text):
    assert parse(text) == SPELLED[text]
    assert parse(repr(SPELLED[text])) == SPELLED[text]


WRONG = {
    "Cusal() & Band(3)": "Cusal .* is not a pattern; the nearest is 'Causal'",
    "Bnad(3)": "Bnad .* is not a pattern; the nearest is 'Band'",
    "Qqqqqqqq()": "is not a pattern; there are Axial|is not a pattern; there are Band",
    "Causal() & 3": "3 in .* is 3; & | ~ combine patterns",
    "3 & Causal()": "3 in .* is 3; & | ~ combine patterns",
    "~3": "3 in .* is 3; & | ~ combine patterns",
    "(1, 2) | Causal()": r"\(1, 2\) in .* is \(1, 2\)",
    "7": "'7' is 7, not a pattern",
    "Band(2.5)": "'2.5' .* is not understood",
    "Band(-3)": "contains no key",
    "Band()": r"wrong arguments in Band\(\): missing 1 .* 'left'\. Write Band\(left, right\)$",
    "Band(window=3)": r"wrong arguments in Band\(window=3\): .*; use 'left' instead\. Write Band\(left, right\)$",
    "Causal() & Band": "'Band' .* is not understood; write patterns with their numbers in brackets",
    "Causal() and Band(3)": "'Causal.. and Band.3.' .* is not understood; .* join them with & | ~",
    "Band(3": "does not parse",
    "__import__('os')": "__import__ .* is not a pattern",
    "Causal().matrix(3)": "is not understood",
    "Causal() if 1 else 2": "is not understood",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_pattern_says_why_in_a_line(text):
    with pytest.raises(ValueError, match=WRONG[text]) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Mine(Pattern):
    """A pattern of a user's own file."""

    n: int

    def __call__(self, b, h, q, k):
        return k % self.n == 0


def test_patterns_of_a_users_own_file_are_known_by_name():
    own = {"Mine": Mine, "window": lambda n: Causal() & Band(n - 1)}
    assert parse("Causal() & Mine(3)", own) == Causal() & Mine(3)
    assert parse("window(4)", own) == Causal() & Band(3)
    with pytest.raises(ValueError, match="the nearest is 'Mine'"):
        parse("Mien(3)", own)
    with pytest.raises(ValueError, match="Mine in 'Mine.3.' is not a pattern"):
        parse("Mine(3)")
