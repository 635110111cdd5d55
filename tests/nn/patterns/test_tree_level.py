"""TreeLevel: token i reads the spans of one level that a walk over the tree reaches from it."""

import pytest
import torch
from torch import Tensor

from kinformer.core.pattern import Index
from kinformer.nn.patterns.tree_level import TreeLevel
from tests.nn.patterns.compare import Reads, compare
from tests.nn.patterns.test_tree import walked

TOKENS = 128  # of the tree that is walked, more than any token here can look ahead


def reads(k: int, level: int, causal: bool) -> Reads:
    spans = [walked(token, k, TOKENS, 1) for token in range(51)]

    def is_read(b: int, h: int, i: int, j: int) -> bool:
        ends_before = (j + 1) * 2**level <= i or (level == 0 and i == j)
        return (level, j) in spans[i] and (ends_before or not causal)

    return is_read


@pytest.mark.parametrize(
    ("k", "level", "causal"), [(1, 0, False), (2, 1, False), (1, 1, True), (3, 2, True), (2, 0, True), (1, 3, False)]
)
def test_a_token_reads_the_spans_of_a_level(k: int, level: int, causal: bool) -> None:
    compare(TreeLevel(k, level, causal), reads(k, level, causal))


@pytest.mark.parametrize(("first", "last"), [(20, 20), (17, 30), (31, 32)])
def test_the_hull_is_the_least_run_of_all_spans(first: int, last: int) -> None:
    is_read = reads(2, 1, False)
    spans = [j for j in range(51) if any(is_read(0, 0, i, j) for i in range(first, last + 1))]
    begin, end = TreeLevel(2, 1).hull(torch.tensor(first), torch.tensor(last))
    assert (int(begin), int(end)) == (min(spans), max(spans) + 1)


class NextSpan(TreeLevel):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h, q, k + 1)


def test_spans_that_are_one_off_are_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 1"):
        compare(NextSpan(1), reads(1, 0, False))
