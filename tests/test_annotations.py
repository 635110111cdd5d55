"""The annotation check itself: it lets through what fits and stops what does not."""

from collections.abc import Callable, Mapping
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput, merge
from tests.annotations import check, jaxtyped, plain

Y = TypeVar("Y")


class Pair(NamedTuple, Generic[Y]):
    y: Y
    note: str = ""


@pytest.mark.parametrize("hint", [Pair, Pair[int], Pair[Tensor] | None, list[Pair], Mapping[str, Pair[int]]], ids=str)
def test_a_generic_named_tuple_is_checked_by_its_class(hint: object) -> None:
    def takes(value: hint) -> None: ...  # type: ignore[valid-type]

    right, wrong = Pair(1), (1, "")
    inside = {list[Pair]: lambda value: [value], Mapping[str, Pair[int]]: lambda value: {"a": value}}
    convert = inside.get(hint, lambda value: value)
    check(takes)(convert(right))
    with pytest.raises(TypeError):
        check(takes)(convert(wrong))


PLAIN = [int, int | None, Literal["a", 1], Annotated[int, "n"], Callable[[], Pair], tuple[int, ...], Float[Tensor, "B"]]


@pytest.mark.parametrize("hint", PLAIN, ids=str)
def test_other_annotations_stay_as_they_are(hint: object) -> None:
    assert plain(hint) is hint


def test_an_int_will_do_for_a_float_and_not_the_other_way() -> None:
    def half(value: float, places: int = 0) -> tuple[float, int]:
        return value, 0

    assert check(half)(3) == (3, 0)
    with pytest.raises(TypeError):
        check(half)(3.0, 1.0)


def test_the_library_is_checked() -> None:
    y, lse = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3)
    assert merge(AttentionOutput(y, lse), AttentionOutput(y, lse)).y.shape == y.shape
    with pytest.raises(TypeError, match="merge"):
        merge(AttentionOutput(y, lse), "no read")


def test_sizes_of_one_name_are_one_size_in_a_call_and_its_result() -> None:
    def cut(x: Float[Tensor, "B T"], y: Float[Tensor, "B T"], size: int = 0) -> Float[Tensor, "B T"]:
        return inner(x)[:, size:]

    def inner(x: Float[Tensor, "T B"]) -> Float[Tensor, "T B"]:
        return x

    cut, inner = (jaxtyped(function, typechecker=check) for function in (cut, inner))
    x = torch.zeros(2, 3)
    assert cut(x, x).shape == x.shape
    with pytest.raises(TypeError, match="y="):
        cut(x, torch.zeros(2, 4))
    with pytest.raises(TypeError, match="return"):
        cut(x, x, 1)
    assert cut(torch.zeros(2, 4), torch.zeros(2, 4)).shape == (2, 4), "a call that was refused leaves no sizes behind"


def test_an_annotation_that_type_checkers_alone_know_is_any_and_stays_as_it_was() -> None:
    def half(value: "int", other: "NoSuchName" = None) -> "float":  # type: ignore[name-defined]  # noqa: F821
        return value / 2

    before = dict(half.__annotations__)
    wrapped = jaxtyped(half, typechecker=check)
    assert wrapped(3, object()) == 1.5 and wrapped.__annotations__ == half.__annotations__ == before
    with pytest.raises(TypeError):
        wrapped("3")
