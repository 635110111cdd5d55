"""The promise of the conversion `pattern`: against a loop over rows, and at what cost."""

from typing import Any

import pytest
import torch

from kinformer.convert import pattern as pattern_file
from kinformer.convert.pattern import BLOCK, _equal_length
from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse

PAIRS = [
    ("Causal()", "Causal() & (Band(11) | Tokens(3))"),
    ("Causal()", "Causal() & Band(7)"),
    ("Causal()", "Causal() & Segment(5, 6)"),
    ("Causal() & Band(9)", "Causal() & Band(4)"),
    ("Causal() & Strided(3)", "Causal() & Strided(3)"),
    ("Full()", "Band(9)"),
    ("Full()", "Band(9, 4)"),
    ("Full()", "Band(4, 9)"),
    ("Full()", "Band(8) | Tokens(2)"),
    ("Full()", "Causal()"),
    ("Full()", "Full()"),
    ("Band(9)", "Band(9, 5)"),
    ("Heads(Causal(), Causal())", "Heads(Causal(), Causal() & Band(13))"),
    ("Full()", "Heads(Full(), Band(40, 6))"),
]


def length_by_hand(old: Pattern, new: Pattern, horizon: int) -> int:
    """The longest row in which all masks are equal, row by row."""
    for length in range(1, horizon + 1):
        if any(not torch.equal(old.matrix(length, h=h), new.matrix(length, h=h)) for h in range(2)):
            return length - 1
    return horizon


@pytest.mark.parametrize("block", [1, 2, 6, 14, 512])
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_the_promised_length_is_that_of_a_loop(old: str, new: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_file, "BLOCK", block)
    want = length_by_hand(parse(old), parse(new), 40)
    assert _equal_length(parse(old), parse(new), 2, 40) == want
    assert _equal_length(parse(new), parse(old), 2, 40) == want


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize(("pattern", "times"), [("Causal()", 1), ("Full()", 2)])
def test_each_pair_is_compared_once_and_few_at_a_time(
    pattern: str, times: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    length, pairs, mask = 2048, list[int](), pattern_file.pair_mask

    def counting(each: Any, queries: Any, keys: Any, of_heads: range) -> Any:
        pairs.append(queries.shape[-1] * keys.shape[-1])
        return mask(each, queries, keys, of_heads)

    monkeypatch.setattr(pattern_file, "pair_mask", counting)
    assert _equal_length(parse(pattern), parse(f"{pattern} & Band({length})"), heads, length) == length
    assert max(pairs) * heads <= BLOCK * length
    # a causal pattern needs half of all pairs, and there are two patterns to compare
    assert sum(pairs) <= times * length * (length + BLOCK)
