"""OnHeads: head h reads every key where h mod of = turn, and no key otherwise."""

import pytest
import torch
from torch import Tensor

from kinformer.core.pattern import Heads, Index
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.patterns.on_heads import OnHeads
from kinformer.nn.patterns.band import Band
from tests.nn.patterns.compare import Reads, compare


def reads(turn: int, of: int) -> Reads:
    return lambda b, h, i, j: h % of == turn


@pytest.mark.parametrize(("turn", "of"), [(0, 2), (1, 3), (0, 1)])
def test_one_head_of_each_group_reads(turn: int, of: int) -> None:
    compare(OnHeads(turn, of), reads(turn, of), length=9, heads=7)


def test_heads_are_the_sum_of_their_turns() -> None:
    pattern = Heads(Causal(), Band(1), Full())
    expression = OnHeads(0, 3) & Causal() | OnHeads(1, 3) & Band(1) | OnHeads(2, 3) & Full()
    assert all(torch.equal(pattern.matrix(9, h=h), expression.matrix(9, h=h)) for h in range(7))


class NextHead(OnHeads):
    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return super().__call__(b, h + 1, q, k)


def test_another_head_is_noticed() -> None:
    with pytest.raises(AssertionError, match="of row 0 and head 0"):
        compare(NextHead(0, 2), reads(0, 2), length=9, heads=7)
