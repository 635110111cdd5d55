"""Conditions of keywords: what a text says, and that a call and a record are treated apart."""

from pathlib import Path
from typing import Any, Literal

import pytest
from torch import nn

from kinformer.checkpoint.checkpoint import load, save
from kinformer.core.discover import member
from kinformer.core.keyword_conditions import by_keyword, check_used, has_effect
from kinformer.core.keywords import parse_keywords
from kinformer.members.agent import agent
from kinformer.members.gpt import gpt

VALUES: dict[str, Any] = {
    "form": "decoder",
    "size": 2,
    "none": None,
    "flag": False,
    "kinds": ("a", "b"),
    "empty": (),
    "sizes": (1, 3),
}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("form=decoder", True),
        ("form=encoder", False),
        ("form=encoder|decoder", True),
        ("form!=decoder", False),
        ("form!=encoder|other", True),
        ("size=2", True),
        ("size>1", True),
        ("size>2", False),
        ("none=none", True),
        ("none!=none", False),
        ("none>0", False),
        ("flag=false", True),
        ("flag", False),
        ("kinds", True),
        ("kinds=b", True),
        ("kinds=c", False),
        ("empty=()", True),
        ("empty", False),
        ("sizes>2", True),
        ("sizes>3", False),
        ("size=2 and flag=true", False),
        ("size=3 or flag=false", True),
        ("size=3 and flag=false or form=decoder and size>1", True),
        ("size=2 and flag=true or form=encoder", False),
    ],
)
def test_a_condition_says_what_it_reads(condition: str, holds: bool) -> None:
    assert has_effect("x", by_keyword({"x, y": condition}, {*VALUES, "x", "y"}), VALUES) is holds
    assert has_effect("other", {}, VALUES)


def test_conditions_of_what_is_no_keyword_are_refused_where_a_member_is_declared() -> None:
    for needs in ({"x": "form=a"}, {"form": "x=a"}, {"form": "=a"}, {"form": "form=a or "}):
        with pytest.raises(TypeError, match="which is not a keyword|is not understood; write it like"):
            member(needs=needs)(_declared)


class Model(nn.Module):
    member: Any


def _declared(form: Literal["a", "b"] = "a", size: int | None = 3, flag: bool = True) -> Model:
    return Model()


def test_a_call_refuses_what_has_no_effect_and_a_record_does_not() -> None:
    build: Any = member(needs={"size": "form=b|c and flag=true"})(_declared)
    build(), build(form="b", size=4)
    for keywords in ({"size": 3}, {"form": "a", "size": 4}, {"form": "b", "size": None, "flag": False}):
        with pytest.raises(ValueError, match="^size=.* has no effect with form=., flag=") as error:
            build(**keywords)
        assert str(error.value).endswith("; leave it out, or give (form=b or form=c) and flag=true")
        assert build.rebuild(**keywords).member.keywords["size"] == keywords["size"]
    with pytest.raises(TypeError, match="has no keyword 'sise'; the nearest is 'size'"):
        build.rebuild(sise=3)


@pytest.mark.parametrize(
    ("condition", "printed"),
    [
        ("a>1 and b=x|y", "a>1 and (b=x or b=y)"),
        ("a=1 and b=x or c", "(a=1 and b=x) or a non-empty c"),
        ("b!=x|y and a>1", "(b!=x and b!=y) and a>1"),
        ("a=1 or b=y", "a=1 or b=y"),
    ],
)
def test_a_printed_condition_has_parentheses_where_and_meets_or(condition: str, printed: str) -> None:
    with pytest.raises(ValueError, match="^size=3 has no effect with") as error:
        check_used({"size": condition}, ["size"], {"size": 3, "a": 0, "b": "z", "c": ()})
    assert str(error.value).endswith(f"; leave it out, or give {printed}")


def test_a_run_that_recorded_a_keyword_without_effect_loads(tmp_path: Path) -> None:
    model = gpt.rebuild(d=8, depth=1, heads=2, position="rotary", length=7)  # type: ignore[attr-defined]
    save(model, tmp_path)
    assert load(tmp_path).member.keywords == {**model.member.keywords, "length": 7}


def test_layers_that_are_lent_are_held_to_the_same() -> None:
    """A checkpoint spells the stack with every keyword, defaults among them."""
    stack = "gpt(d=8, depth=1, heads=2, position=rotary, length={})"
    agent(stack=stack.format(1024))
    with pytest.raises(ValueError, match="^length=7 has no effect with position=rotary"):
        agent(stack=stack.format(7))
    assert parse_keywords(gpt, ["length=7"]) == {"length": 7}
