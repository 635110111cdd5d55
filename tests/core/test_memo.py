"""Memo: what is made once per forward, known by the tensors it was made of."""

import gc

import pytest
import torch

from kinformer.core.memo import Memo
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.nn.patterns.band import Band


class Counted:
    """Makes a new number each time it is asked."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> int:
        self.made += 1
        return self.made


def test_tensors_count_as_themselves_and_patterns_by_value() -> None:
    memo, make, pos = Memo(), Counted(), torch.arange(3)
    assert memo.get(make, "mask", Causal() & Band(3), pos) == 1
    assert memo.get(make, "mask", Causal() & Band(3), pos) == 1  # another object of the same value
    assert memo.get(make, "mask", Causal() & Band(4), pos) == 2
    assert memo.get(make, "mask", Causal() & Band(3), pos.clone()) == 3  # the same numbers in another tensor
    assert memo.get(make, "slots", Causal() & Band(3), pos) == 4
    ids = torch.zeros(1, 3).long()
    assert memo.get(make, Causal() & Document(ids)) == 5  # another Document is another pattern
    assert memo.get(make, Causal() & Document(ids)) == 6
    assert Memo().get(make, "mask", Causal() & Band(3), pos) == 7


def test_a_tensor_that_is_gone_never_stands_for_another() -> None:
    """Python gives a freed tensor's id to the next one: the memo must hold on to what it is asked about."""
    memo, make = Memo(), Counted()
    for n in range(200):
        pos = torch.full((1, 3), n)
        assert memo.get(make, "mask", pos) == n + 1
        del pos
        gc.collect(0)


def test_put_says_beforehand_what_get_finds_also_none() -> None:
    memo, make, pos = Memo(), Counted(), torch.arange(3)
    memo.store(None, "mask", pos)
    assert memo.get(make, "mask", pos) is None and make.made == 0


def test_put_holds_on_to_its_tensors_too() -> None:
    memo, make = Memo(), Counted()
    for n in range(200):
        pos = torch.full((1, 3), n)
        memo.store(-n, "mask", pos)
        del pos
        other = torch.full((1, 3), n)
        assert memo.get(make, "mask", other) == n + 1
        del other


def test_look_gives_python_numbers_and_checks_what_is_expected() -> None:
    memo = Memo()
    memo.expect(torch.tensor([True, True]), "never said")
    assert memo.look(torch.tensor(3), torch.tensor([True, False]), torch.tensor([[4]])) == [3, 1, 0, 4]
    memo.expect(torch.tensor([True, True]), "never said")
    memo.expect(torch.tensor([True, False]), "a gap")
    with pytest.raises(ValueError, match="^a gap$"):
        memo.look(torch.tensor(1))
    assert memo.look() == []  # what was looked at is done with


def test_settle_looks_only_where_something_is_expected() -> None:
    memo = Memo()
    memo.settle()
    memo.expect(torch.tensor(False), "a gap")
    with pytest.raises(ValueError, match="a gap"):
        memo.settle()
    memo.settle()
