"""The comparison notices each kind of mistake: a pair that is wrong, and every claim that is not true or not exact."""

import math
from typing import Any

import pytest

from kinformer.core.layout import Near
from kinformer.nn.patterns.band import Band
from tests.nn.patterns.compare import compare

CLAIMS: dict[str, Any] = {
    "of_head": lambda self, h: Band(2 + h),
    "reach": lambda self: (2, 3),
    "reach ": lambda self: (3, math.inf),
    "period": lambda self: 2,
    "live": lambda self, k, now: k > now - 3,
    "live ": lambda self, k, now: k >= now - 4,
    "capacity": lambda self, length: min(length, 2),
    "capacity ": lambda self, length: length,
    "cover": lambda self, *ends: (ends[0] < 0, ends[0] < 0),
    "cover ": lambda self, *ends: (ends[0] >= 0, ends[0] < 0),
}


def read_three_around(b: int, h: int, i: int, j: int) -> bool:
    return abs(i - j) <= 3


def test_a_true_and_exact_pattern_passes() -> None:
    compare(Band(3), read_three_around, heads=2)


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_that_is_too_narrow_or_too_wide_is_noticed(claim: str) -> None:
    wrong = type("Wrong", (Band,), {claim.strip(): CLAIMS[claim]})
    with pytest.raises(AssertionError, match=rf"{claim.strip()}\("):
        compare(wrong(3), read_three_around)


def test_a_wide_claim_passes_as_a_bound_and_a_narrow_one_does_not() -> None:
    wide = type("Wide", (Band,), {"capacity": lambda self, length: length})
    compare(wide(3), read_three_around, bounds=("capacity",))
    narrow = type("Narrow", (Band,), {"capacity": lambda self, length: 1})
    with pytest.raises(AssertionError, match=r"capacity\("):
        compare(narrow(3), read_three_around, bounds=("capacity",))


@pytest.mark.parametrize(
    ("name", "value", "message"), [("expression", Band(2), "expression of Wrong"), ("layout", Near(2, 2), "its layout")]
)
def test_an_expression_or_a_layout_of_other_pairs_is_noticed(name: str, value: object, message: str) -> None:
    wrong = type("Wrong", (Band,), {name: property(lambda self: value)})
    with pytest.raises(AssertionError, match=message):
        compare(wrong(3), read_three_around)
