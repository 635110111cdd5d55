"""The annotation check itself: it lets through what fits and stops what does not."""

from collections.abc import Callable, Mapping
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from kinformer.core.read import Read, merge
from tests.annotations import check, plain

Y = TypeVar("Y")


class Pair(NamedTuple, Generic[Y]):
    y: Y
    note: str = ""


@pytest.mark.parametrize("hint", [Pair, Pair[int], Pair[Tensor] | None, list[Pair], Mapping[str, Pair[int]]], ids=str)
def test_a_generic_named_tuple_is_checked_by_its_class(hint: object) -> None:
    def takes(value: hint) -> None: ...  # type: ignore[valid-type]

    right, wrong = Pair(1), (1, "")
    inside = {list[Pair]: lambda value: [value], Mapping[str, Pair[int]]: lambda value: {"a": value}}
    put = inside.get(hint, lambda value: value)
    check(takes)(put(right))
    with pytest.raises(BeartypeCallHintViolation):
        check(takes)(put(wrong))


PLAIN = [int, int | None, Literal["a", 1], Annotated[int, "n"], Callable[[], Pair], tuple[int, ...], Float[Tensor, "B"]]


@pytest.mark.parametrize("hint", PLAIN, ids=str)
def test_other_annotations_stay_as_they_are(hint: object) -> None:
    assert plain(hint) is hint


def test_an_int_will_do_for_a_float_and_not_the_other_way() -> None:
    def half(value: float, places: int = 0) -> tuple[float, int]:
        return value, 0

    assert check(half)(3) == (3, 0)
    with pytest.raises(BeartypeCallHintViolation):
        check(half)(3.0, 1.0)


def test_the_library_is_checked() -> None:
    y, lse = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3)
    assert merge(Read(y, lse), Read(y, lse)).y.shape == y.shape
    with pytest.raises(TypeCheckError, match="merge"):
        merge(Read(y, lse), "no read")
