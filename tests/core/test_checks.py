"""Checks of arguments: the value comes back, or one line says what came and what to give."""

import math
from typing import Literal

import pytest
import torch

from kinformer.core import checks
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
    (checks.one_of, ("x", "b", Literal["a", "b"])),
    (checks.one_of, ("x", 2, (1, 2))),
    (checks.whole, ("x", -3)),
    (checks.at_least, ("x", 3, 3)),
    (checks.whole_numbers, ("x", (0, 2), 0)),
    (checks.a_flag, ("x", False)),
    (checks.within, ("x", 1, 0, 1)),
    (checks.within, ("x", 7.5, 0, math.inf)),
    (checks.a_probability, ("x", 0.0)),
    (checks.a_scale, (-0.5,)),
    (checks.a_scale, (None,)),
    (checks.multiple, ("d", 12, "heads", 4)),
    (checks.a_pattern, ("x", Causal() & Band(3))),
]


def test_a_head_is_as_wide_as_said_or_a_share_of_d() -> None:
    assert (checks.head_width(12, 4), checks.head_width(12, 5, 7)) == (3, 7)
    for arguments, name in (((12, 5), "d=12"), ((12, 0), "heads=0"), ((12, 4, 0), "head_dim=0")):
        with pytest.raises(ValueError, match=name):
            checks.head_width(*arguments)


@pytest.mark.parametrize("n", range(len(GOOD)))
def test_what_fits_comes_back(n: int) -> None:
    check, arguments = GOOD[n]
    assert check(*arguments) is arguments[min(1, len(arguments) - 1)]


def test_a_table_comes_back() -> None:
    for table, marks in ((torch.zeros(1, 3).long(), False), (torch.zeros(1, 3, dtype=torch.bool), True)):
        assert checks.a_table("x", table, marks) is table
    assert checks.a_table("x", torch.zeros(2, 3, dtype=torch.int32)).dtype == torch.int32


SCALE = "give a number, or None for 1/sqrt of a key's width"
BAD = [
    (lambda: checks.one_of("mode", "c", Literal["a", "b"]), "mode='c' is not known; choose 'a' or 'b'"),
    (lambda: checks.whole("n", 2.0), "n=2.0: give a whole number"),
    (lambda: checks.whole("n", True), "n=True: give a whole number"),
    (lambda: checks.at_least("n", 2, 3), "n=2: give a whole number of at least 3"),
    (lambda: checks.at_least("n", 3.5, 3), "n=3.5: give a whole number of at least 3"),
    (lambda: checks.at_least("n", True, 0), "n=True: give a whole number of at least 0"),
    (lambda: checks.at_least("n", None, 0), "n=None: give a whole number of at least 0"),
    (lambda: checks.whole_numbers("n", [1], 0), "n=[1]: give a tuple of whole numbers of at least 0"),
    (lambda: checks.whole_numbers("n", (1, -1), 0), "n[1]=-1: give a whole number of at least 0"),
    (lambda: checks.a_flag("on", 1), "on=1: give True or False"),
    (lambda: checks.within("p", 1.5, 0, 1), "p=1.5: give a number from 0 to 1"),
    (lambda: checks.within("p", math.nan, 0, 1), "p=nan: give a number from 0 to 1"),
    (lambda: checks.within("p", math.nan, 0, math.inf), "p=nan: give a number from 0 up"),
    (lambda: checks.within("p", "1", 0, math.inf), "p='1': give a number from 0 up"),
    (lambda: checks.within("p", True, 0, 1), "p=True: give a number from 0 to 1"),
    (lambda: checks.a_probability("dropout", 1.0), "dropout=1.0: give a number from 0 below 1"),
    (lambda: checks.multiple("d", 10, "heads", 4), "d=10 does not split into heads=4; make it a multiple"),
    (lambda: checks.multiple("d", 10, "heads", 0), "heads=0: give a whole number of at least 1"),
    (lambda: checks.multiple("d", 0, "heads", 2), "d=0: give a whole number of at least 1"),
    (lambda: checks.a_table("t", 3), "t=3: give a tensor [B P] of whole numbers"),
    (lambda: checks.a_table("t", torch.zeros(3).long()), "t is torch.int64 of shape [3]; give [B P] of whole numbers"),
    (lambda: checks.a_table("t", torch.zeros(1, 3), True), "t is torch.float32 of shape [1, 3]; give [B P] of bool"),
    (lambda: checks.a_pattern("p", "causal"), "p is 'causal'; give a pattern, such as Causal() & Band(64)"),
    (lambda: checks.a_pattern("p", Causal), "p is the class Causal; give a pattern, such as Causal() & Band(64)"),
    (lambda: checks.unread("on=False", n=(1, 1), m=(2, 1)), "m=2 has no effect with on=False; leave it out"),
    (lambda: checks.a_scale("x"), f"scale='x': {SCALE}"),
    (lambda: checks.a_scale(math.nan), f"scale=nan: {SCALE}"),
    (lambda: checks.a_scale(True), f"scale=True: {SCALE}"),
    (lambda: Softmax(Causal(), scale="x"), f"scale='x': {SCALE}"),
    (lambda: Explicit(Causal(), scale="x"), f"scale='x': {SCALE}"),
    (lambda: LSH(2, 8, 4, scale="x"), f"scale='x': {SCALE}"),
    (lambda: Routing(2, 8, 4, scale="x"), f"scale='x': {SCALE}"),
    (lambda: LSH(2, 8, 4, seed="a"), "seed='a': give a whole number"),
    (lambda: Routing(2, 8, 4, seed="a"), "seed='a': give a whole number"),
    (lambda: PublishedLSH(2, 8, 4, 3, restricted="no"), "restricted='no': give True or False"),
    (lambda: PublishedLSH(2, 8, 4, 3, divided="no"), "divided='no': give True or False"),
    (lambda: PublishedRouting(2, 8, 4, 3, null="no"), "null='no': give True or False"),
    (lambda: Softmax("causal"), "pattern is 'causal'; give a pattern, such as Causal() & Band(64)"),
]


def refusal_messages() -> list[str]:
    return refusals([make for make, _ in BAD])


@pytest.mark.parametrize("n", range(len(BAD)))
def test_what_does_not_fit_is_refused_in_a_line(n: int) -> None:
    """In a process where nothing checks annotations."""
    assert unhooked(f"{__name__}:{refusal_messages.__name__}")[n] == f"ValueError: {BAD[n][1]}"
