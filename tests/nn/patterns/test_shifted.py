"""Shifted: query i reads key j where both stand at n or later and i - n reads j - n under the pattern."""

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.pattern import Heads, Index, Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.shifted import Shifted, shift_context
from kinformer.nn.patterns.tokens import Tokens
from tests.nn.patterns.compare import Reads, compare


def reads(inner: Reads, n: int) -> Reads:
    return lambda b, h, i, j: min(i, j) >= n and inner(b, h, i - n, j - n)


CASES: list[tuple[Pattern, Reads]] = [
    (Band(2, 0), lambda b, h, i, j: i - 2 <= j <= i),
    (Causal() & Band(2), lambda b, h, i, j: i - 2 <= j <= i),
    (Tokens(2), lambda b, h, i, j: j < 2),
    (Block(4), lambda b, h, i, j: i // 4 == j // 4),
    (Heads(Causal(), Band(1)), lambda b, h, i, j: j <= i if h % 2 == 0 else abs(i - j) <= 1),
]


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize(("pattern", "inner"), CASES, ids=[repr(pattern) for pattern, _ in CASES])
def test_the_pairs_of_the_pattern_move(pattern: Pattern, inner: Reads, n: int) -> None:
    compare(Shifted(pattern, n), reads(inner, n), heads=2)


def test_a_context_moves_with_its_limits() -> None:
    ctx = shift_context(Context(torch.tensor([[-1, 0, 1, 2]]), only=Causal()), 3)
    assert ctx.pos.tolist() == [[-1, 3, 4, 5]]
    assert (ctx.only, ctx.also) == (Shifted(Causal(), 3), None)


class Clamped(Shifted):
    """Leaves new positions where the first old position stands."""

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return self.pattern(b, h, self._shift_back(q), self._shift_back(k))


def test_new_positions_that_read_are_noticed() -> None:
    with pytest.raises(AssertionError, match="query 0 and key 0"):
        compare(Clamped(Band(2, 0), 3), reads(CASES[0][1], 3))
