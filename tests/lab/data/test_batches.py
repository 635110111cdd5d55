"""Batches: taken in turn or drawn, measured on their own, moved and counted as trees."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from kinformer.lab.data.batches import Batches, to_device, tokens_of


class Labelled(NamedTuple):
    rows: Tensor
    labels: Tensor


def test_an_iterable_is_gone_through_once_and_taken_in_turn() -> None:
    data = Batches(iter([1, 2, 3]))
    assert [data.at(step) for step in range(7)] == [1, 2, 3, 1, 2, 3, 1] and data.validation_batches == (1, 2, 3)


def test_a_function_draws_by_the_step_and_is_measured_elsewhere() -> None:
    data = Batches(lambda step: 10 * step, iter([7]))
    assert [data.at(step) for step in (0, 3)] == [0, 30] and data.validation_batches == (7,) == data.validation_batches


@pytest.mark.parametrize("wrong", [([],), ([1], []), (lambda step: 1, [])])
def test_no_batch_is_refused(wrong: tuple) -> None:
    with pytest.raises(ValueError, match="Batches is empty"):
        Batches(*wrong)


def test_every_tensor_of_a_batch_is_moved() -> None:
    x = torch.zeros(2, 3)
    on_meta = to_device("meta", {"pair": (x, [x]), "named": Labelled(x, x), "name": "kept"})
    assert on_meta["pair"][0].is_meta and on_meta["pair"][1][0].is_meta and on_meta["named"].labels.is_meta
    assert isinstance(on_meta["named"], Labelled) and on_meta["name"] == "kept"


def test_what_a_batch_holds() -> None:
    rows = torch.zeros(4, 7)
    counts = [tokens_of(batch) for batch in (rows, (rows, rows[0]), {"x": rows}, torch.zeros(5), ())]
    assert counts == [24, 24, 24, 5, 0]
