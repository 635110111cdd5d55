"""Checks of arguments: the value comes back, or one line says what came and what to give."""

import math
from typing import Literal

import pytest
import torch

from kinformer.core import checks
from kinformer.core.pattern import check_pattern
from kinformer.core.patterns.causal import Causal
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.lsh import LSH
from kinformer.nn.mechanisms.lsh_published import PublishedLSH
from kinformer.nn.mechanisms.routing import Routing
from kinformer.nn.mechanisms.routing_published import PublishedRouting
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from tests.unhooked import refusals, unhooked

GOOD = [
    (checks.check_option, ("x", "b", Literal["a", "b"])),
    (checks.check_option, ("x", 2, (1, 2))),
    (checks.check_whole_number, ("x", -3)),
    (checks.check_at_least, ("x", 3, 3)),
    (checks.check_whole_numbers, ("x", (0, 2), 0)),
    (checks.check_flag, ("x", False)),
    (checks.check_in_range, ("x", 1, 0, 1)),
    (checks.check_in_range, ("x", 7.5, 0, math.inf)),
    (checks.check_probability, ("x", 0.0)),
    (checks.check_scale, (-0.5,)),
    (checks.check_scale, (None,)),
    (checks.check_multiple, ("d", 12, "heads", 4)),
    (check_pattern, ("x", Causal() & Band(3))),
]


def test_a_head_is_as_wide_as_said_or_a_share_of_d() -> None:
    assert (checks.resolve_head_dim(12, 4), checks.resolve_head_dim(12, 5, 7)) == (3, 7)
    for arguments, name in (((12, 5), "d=12"), ((12, 0), "heads=0"), ((12, 4, 0), "head_dim=0")):
        with pytest.raises(ValueError, match=name):
            checks.resolve_head_dim(*arguments)


@pytest.mark.parametrize("n", range(len(GOOD)))
def test_what_fits_comes_back(n: int) -> None:
    check, arguments = GOOD[n]
    assert check(*arguments) is arguments[min(1, len(arguments) - 1)]


def test_a_table_comes_back() -> None:
    for table, marks in ((torch.zeros(1, 3).long(), False), (torch.zeros(1, 3, dtype=torch.bool), True)):
        assert checks.check_position_table("x", table, marks) is table
    assert checks.check_position_table("x", torch.zeros(2, 3, dtype=torch.int32)).dtype == torch.int32


SCALE = "give a number, or None for 1/sqrt of a key's width"
BAD = [
    (lambda: checks.check_option("mode", "c", Literal["a", "b"]), "mode='c' is not known; choose 'a' or 'b'"),
    (lambda: checks.check_whole_number("n", 2.0), "n=2.0: give a whole number"),
    (lambda: checks.check_whole_number("n", True), "n=True: give a whole number"),
    (lambda: checks.check_at_least("n", 2, 3), "n=2: give a whole number of at least 3"),
    (lambda: checks.check_at_least("n", 3.5, 3), "n=3.5: give a whole number of at least 3"),
    (lambda: checks.check_at_least("n", True, 0), "n=True: give a whole number of at least 0"),
    (lambda: checks.check_at_least("n", None, 0), "n=None: give a whole number of at least 0"),
    (lambda: checks.check_whole_numbers("n", [1], 0), "n=[1]: give a tuple of whole numbers of at least 0"),
    (lambda: checks.check_whole_numbers("n", (1, -1), 0), "n[1]=-1: give a whole number of at least 0"),
    (lambda: checks.check_flag("on", 1), "on=1: give True or False"),
    (lambda: checks.check_in_range("p", 1.5, 0, 1), "p=1.5: give a number from 0 to 1"),
    (lambda: checks.check_in_range("p", math.nan, 0, 1), "p=nan: give a number from 0 to 1"),
    (lambda: checks.check_in_range("p", math.nan, 0, math.inf), "p=nan: give a number from 0 up"),
    (lambda: checks.check_in_range("p", "1", 0, math.inf), "p='1': give a number from 0 up"),
    (lambda: checks.check_in_range("p", True, 0, 1), "p=True: give a number from 0 to 1"),
    (lambda: checks.check_probability("dropout", 1.0), "dropout=1.0: give a number from 0 to below 1"),
    (lambda: checks.check_multiple("d", 10, "heads", 4), "d=10 is not a multiple of heads=4; change one of them"),
    (lambda: checks.check_multiple("d", 10, "heads", 0), "heads=0: give a whole number of at least 1"),
    (lambda: checks.check_multiple("d", 0, "heads", 2), "d=0: give a whole number of at least 1"),
    (lambda: checks.check_position_table("t", 3), "t=3: give a tensor [B P] of whole numbers"),
    (
        lambda: checks.check_position_table("t", torch.zeros(3).long()),
        "t is torch.int64 of shape [3]; give [B P] of whole numbers",
    ),
    (
        lambda: checks.check_position_table("t", torch.zeros(1, 3), True),
        "t is torch.float32 of shape [1, 3]; give [B P] of bool",
    ),
    (
        lambda: check_pattern("p", "causal"),
        "p is 'causal'; give a pattern, such as Causal() & Band(64), without quotes, because only members take a text",
    ),
    (lambda: check_pattern("p", Causal), "p is the class Causal; give a pattern, such as Causal() & Band(64)"),
    (lambda: checks.check_unused("on=False", n=(1, 1), m=(2, 1)), "m=2 has no effect with on=False; leave it out"),
    (lambda: checks.check_scale("x"), f"scale='x': {SCALE}"),
    (lambda: checks.check_scale(math.nan), f"scale=nan: {SCALE}"),
    (lambda: checks.check_scale(True), f"scale=True: {SCALE}"),
    (lambda: Softmax(Causal(), scale="x"), f"scale='x': {SCALE}"),
    (lambda: Explicit(Causal(), scale="x"), f"scale='x': {SCALE}"),
    (lambda: LSH(2, 8, 4, scale="x"), f"scale='x': {SCALE}"),
    (lambda: Routing(2, 8, 4, scale="x"), f"scale='x': {SCALE}"),
    (lambda: LSH(2, 8, 4, seed="a"), "seed='a': give a whole number"),
    (lambda: Routing(2, 8, 4, seed="a"), "seed='a': give a whole number"),
    (lambda: PublishedLSH(2, 8, 4, 3, restricted="no"), "restricted='no': give True or False"),
    (lambda: PublishedLSH(2, 8, 4, 3, divided="no"), "divided='no': give True or False"),
    (lambda: PublishedRouting(2, 8, 4, 3, null="no"), "null='no': give True or False"),
    (
        lambda: Softmax("causal"),
        "pattern is 'causal'; give a pattern, such as Causal() & Band(64), without quotes, "
        "because only members take a text",
    ),
]


def refusal_messages() -> list[str]:
    return refusals([make for make, _ in BAD])


@pytest.mark.parametrize("n", range(len(BAD)))
def test_what_does_not_fit_is_refused_in_a_line(n: int) -> None:
    """In a process where nothing checks annotations."""
    assert unhooked(f"{__name__}:{refusal_messages.__name__}")[n] == f"ValueError: {BAD[n][1]}"
