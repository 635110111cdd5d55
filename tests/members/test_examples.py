"""The examples of a member reach every value of its keywords that decides what is computed."""

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

import pytest

from kinformer.core.discover import find_member, members, modules
from kinformer.core.example import Example
from kinformer.core.keyword_conditions import has_effect
from kinformer.core.keywords import signature

NAMES = sorted(members())
# keywords that members hand on unread to the same code: each value is reached by the examples of some member, and each
# member reaches two of them
SHARED = {
    "position": "members/support/wiring.py makes the same parts of it for every member",
    "init": "kinformer.nn.initialise starts the weights of every member",
    "activation": "one function of feedforward/mlp.py, beside which nothing differs",
    "weights": "losses/aligned_exits.py weighs the losses of exits, or the member has two of its own",
}
OTHERWISE = {
    "dropout": "examples drop nothing; the laws dropout and derivative, and test_dropout.py, set it",
    "head_dim": "test_head_dim.py builds every member with a width of its own",
    "search": "an index of FAISS is an optional package, and finds most of what an exact search finds",
    "datastore": "a folder of keys that a trained model has made; tests/models/test_spalm.py makes one",
}
SAME = {  # further keywords of one member
    ("spalm", "frozen"): OTHERWISE["datastore"],
    ("spalm", "distance"): OTHERWISE["datastore"],
}


class Branch(NamedTuple):
    """A choice that a keyword offers: in words, and whether a value takes it."""

    words: str
    takes: Callable[[Any], bool]


def branches(annotation: Any, default: Any) -> Iterator[Branch]:
    """Each literal, True and False, each kind of a union; a number besides 0, a text or a tuple besides the default."""
    literals = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
    if annotation is bool:
        literals = (True, False)
    yield from (Branch(repr(value), lambda option_given, value=value: _same(option_given, value)) for value in literals)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            inner = list(branches(option, None)) if typing.get_origin(option) is Literal or option is bool else []
            yield from inner or [Branch(str(option), lambda option_given, option=option: _is_of(option_given, option))]
    elif typing.get_origin(annotation) is tuple:
        for inside in branches(typing.get_args(annotation)[0], None):
            yield Branch(
                f"a tuple with {inside.words}", lambda option_given, inside=inside: any(map(inside.takes, option_given))
            )
        if not default:
            yield Branch("a tuple with items", bool)
    elif annotation is str and default is not None:
        yield Branch(f"a text besides {default!r}", lambda option_given: option_given != default)
    elif annotation in (int, float) and default == 0 and default is not None:
        yield Branch("a number besides 0", bool)


def _same(actual: Any, value: Any) -> bool:
    return type(actual) is type(value) and actual == value


def _is_of(actual: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is tuple:
        return isinstance(actual, tuple)
    return isinstance(actual, int | float if kind is float else kind) and (kind is bool or not isinstance(actual, bool))


@cache
def examples_of(name: str) -> list[Mapping[str, Any]]:
    """The keywords of each example of a member."""
    files = [module for module in modules("members").values() if find_member(name).__module__ == module.__name__]
    records = [Example.from_entry(entry).make().member for module in files for entry in module.EXAMPLES]
    return [record.keywords for record in records if record.name == name]


@cache
def reached(name: str) -> dict[str, tuple[set[str], set[str]]]:
    """The choices of each keyword of a member, and those that its examples take where the keyword has an effect."""
    function, choices = find_member(name), {}
    for keyword, parameter in signature(function).parameters.items():
        needs: Any = function.needs  # type: ignore[attr-defined]
        values = [example[keyword] for example in examples_of(name) if has_effect(keyword, needs, example)]
        offered = list(branches(parameter.annotation, parameter.default))
        covered = {branch.words for branch in offered if any(branch.takes(value) for value in values)}
        choices[keyword] = ({branch.words for branch in offered}, covered)
    return choices


@pytest.mark.parametrize("name", NAMES)
def test_examples_reach_every_branch(name: str) -> None:
    missing = {}
    for keyword, (offered, covered) in reached(name).items():
        if keyword in OTHERWISE or (name, keyword) in SAME:
            continue
        few = keyword in SHARED and len(covered) >= min(2, len(offered))
        if offered - covered and not few:
            missing[keyword] = sorted(offered - covered)
    assert not missing, f"the EXAMPLES of {name} never take {missing}; add a small one that does"


@pytest.mark.parametrize("keyword", SHARED)
def test_members_together_reach_what_they_share(keyword: str) -> None:
    choices = [reached(name)[keyword] for name in NAMES if keyword in reached(name)]
    offered = set().union(*(offered for offered, _ in choices))
    assert len(choices) > 1 and offered == set().union(*(covered for _, covered in choices))


def test_a_branch_is_told_from_its_neighbours() -> None:
    def words(annotation: Any, default: Any, value: Any) -> list[str]:
        return [branch.words for branch in branches(annotation, default) if branch.takes(value)]

    assert words(Literal["a", "b"], "a", "b") == ["'b'"]
    assert words(bool, False, True) == ["True"] and words(Literal[0, 1], 0, 1) == ["1"]
    assert words(int | None, None, None) == [str(types.NoneType)]
    assert words(int | tuple[int, ...], 3, (1, 2)) == ["tuple[int, ...]"] and words(float | None, None, 2) != []
    assert words(Literal["a", "b"] | bool, "a", True) == ["True"]
    assert words(tuple[Literal["a", "b"], ...], (), ("b",)) == ["a tuple with 'b'", "a tuple with items"]
    assert words(float, 0.0, 0.0) == [] == words(str, "Full()", "Full()") and words(int, 3, 4) == []
