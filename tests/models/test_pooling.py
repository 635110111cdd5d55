"""Poolings by themselves: what a row becomes is its own, however it is padded and whatever stands beside it."""

from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest

from kinformer.core.pooler import Pooler
from kinformer.laws import any_length, autocast, batch_mates, derivative, dtype, empty_rows, mutation, padding
from kinformer.laws.support.layer_forms import forms
from kinformer.nn.poolers.cls import CLSPooler
from kinformer.nn.poolers.max import MaxPooler
from kinformer.nn.poolers.mean import MeanPooler
from kinformer.nn.poolers.sum import SumPooler

LAWS = (any_length, autocast, batch_mates, derivative, dtype, empty_rows, mutation, padding)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.rpartition(".")[2])
@pytest.mark.parametrize(
    "make", [SumPooler, MaxPooler, MeanPooler, partial(CLSPooler, 16)], ids=["sum", "max", "mean", "first"]
)
def test_laws(make: Callable[[], Pooler], law: ModuleType) -> None:
    (subject,) = forms(make(), make)
    assert list(law.judge(subject)) == []
