"""Every size of a task or an environment changes what comes of it, beside another value of any other too."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from kinformer.core.discover import modules
from kinformer.core.keywords import signature
from kinformer.core.task import Task
from tests.members.options import values

EPISODES, STEPS, ROWS = 4, 40, 8
SMALL = {"listops": {"shortest": 4, "longest": 16, "deepest": 4}}
ONE = {("recall", "queries", "pairs", 1): "of one pair there is one query"}


def kinds(folder: str) -> dict[str, Any]:
    found = {}
    for name, module in modules(folder).items():
        own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        public = [one for one in own if not one.__name__.startswith("_")]
        found[name] = next(one for one in public if hasattr(one, "row") or hasattr(one, "reset"))
    return found


def seen(kind: Any, sizes: dict[str, Any]) -> object:
    """What comes of it; None where it is refused."""
    try:
        made = kind(**sizes)
    except ValueError:
        return None
    if isinstance(made, Task):
        chance = numpy.random.default_rng(3)
        return [made.row(chance) for _ in range(ROWS)], made.width, made.guessing
    return list(_played(made))


def _played(made: Any) -> Iterator[object]:
    chance = numpy.random.default_rng(0)
    for seed in range(EPISODES):
        yield numpy.asarray(made.reset(seed=seed)[0]).tolist()
        for _ in range(STEPS):
            observed, reward, over, cut, told = made.step(int(chance.integers(made.action_space.n)))
            yield numpy.asarray(observed).tolist(), reward, over, cut, str(told)
            if over or cut:
                break


KINDS = kinds("tasks") | kinds("environments")


@pytest.mark.parametrize("name", KINDS)
def test_every_size_has_an_effect(name: str) -> None:
    kind, parameters = KINDS[name], dict(signature(KINDS[name]).parameters)
    parameters.pop("render_mode", None)
    usual = {key: parameter.default for key, parameter in parameters.items()} | SMALL.get(name, {})
    beside = [("", None), *((key, one) for key in usual for one in other(parameters, usual, key)[:3])]
    for key in usual:
        for changed, value in beside:
            base = {**usual, changed: value} if changed else usual
            before = seen(kind, base)
            if changed == key or before is None or (name, key, changed, value) in ONE:
                continue
            after = (seen(kind, {**base, key: one}) for one in other(parameters, usual, key))
            assert any(one is not None and one != before for one in after), (key, changed, value)


def other(parameters: dict[str, Any], usual: dict[str, Any], key: str) -> list[Any]:
    return values(key, parameters[key].annotation, usual[key])
