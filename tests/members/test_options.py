"""No keyword is without effect: another value changes something that can be seen, or is refused."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from kinformer.core.discover import find_member, modules
from kinformer.core.example import Example
from tests.members.options import Watched, values

NAMES = sorted(modules("members"))
SOME = 3  # settings of a keyword beside which `make test` tries as many others
WIDE = ("d", "heads", "vocab", "head_dim", "hidden", "length", "channels")  # sizes, which decide no option


def bases(name: str) -> Iterator[tuple[Watched, dict[str, Any]]]:
    """Each example of a member, with a value for every keyword."""
    for entry in modules("members")[name].EXAMPLES:
        record = Example.from_entry(entry).make().member
        base = dict(record.keywords)
        yield Watched(find_member(record.name)), base | ({"dropout": 0.3} if "dropout" in base else {})


def alone(watched: Watched, base: dict[str, Any]) -> list[str]:
    """Keywords that change nothing beside the base."""
    return [name for name in watched.parameters if watched.useless(base, name, 8)]


def settings(watched: Watched, base: dict[str, Any]) -> list[tuple[str, Any]]:
    """Another value of one keyword, each that builds."""
    names = [name for name in watched.parameters if name not in WIDE]
    kinds = {name: watched.parameters[name].annotation for name in names}
    changed = [(name, value) for name in names for value in values(name, kinds[name], base[name])]
    return [(name, value) for name, value in changed if not isinstance(value, float) or value in (0.0, 1.0)]


@pytest.mark.parametrize("name", [name for name in NAMES if getattr(find_member(name), "needs", {})])
def test_recorded_keywords_are_built_from_whatever_has_an_effect(name: str) -> None:
    """The config of a run holds every keyword, those that count for nothing at their defaults."""
    watched, base = next(bases(name))
    tried = set[str]()
    for other, value in settings(watched, base):
        useful = watched.useful({**base, other: value}, other)
        useless = {key: watched.parameters[key].default for key in base.keys() - useful.keys() - tried}
        if useless and not watched.build(useful).refusal:
            model = watched.function.rebuild(**useful, **useless)  # type: ignore[attr-defined]
            assert model.member.keywords.items() >= (useful | useless).items()
            for key in useless:
                with pytest.raises(ValueError, match=f"^{key}=.* has no effect with .*; leave it out, or give "):
                    watched.function(**useful, **{key: useless[key]})
            tried |= useless.keys()


@pytest.mark.parametrize("name", NAMES)
def test_no_keyword_is_without_effect(name: str) -> None:
    watched, base = next(bases(name))
    assert not alone(watched, base)


@pytest.mark.parametrize("name", NAMES)
def test_no_keyword_is_without_effect_beside_another(name: str, prove: bool) -> None:
    rng, faults = random.Random(name), set[str]()
    examples = list(bases(name))
    for watched, base in examples if prove else [rng.choice(examples)]:
        pairs = settings(watched, base)
        for other, value in pairs if prove else rng.sample(pairs, min(SOME, len(pairs))):
            with_other = {**base, other: value}
            if watched.build(watched.useful(with_other, other)).refusal:
                continue
            names = [key for key in watched.parameters if key != other]
            for key in names if prove else rng.sample(names, min(SOME, len(names))):
                if same := watched.useless(with_other, key, 8):
                    faults.add(f"{key}={same} beside {other}={value}")
    assert not faults
