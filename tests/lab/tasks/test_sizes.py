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
    by_name = {}
    for name, module in modules(folder).items():
        own = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
        public = [kind for kind in own if not kind.__name__.startswith("_")]
        by_name[name] = next(kind for kind in public if hasattr(kind, "row") or hasattr(kind, "reset"))
    return by_name


def run_kind(kind: Any, sizes: dict[str, Any]) -> object:
    """What comes of it; None where it is refused."""
    try:
        instance = kind(**sizes)
    except ValueError:
        return None
    if isinstance(instance, Task):
        rng = numpy.random.default_rng(3)
        return [instance.row(rng) for _ in range(ROWS)], instance.width, instance.chance_accuracy
    return list(_played(instance))


def _played(instance: Any) -> Iterator[object]:
    rng = numpy.random.default_rng(0)
    for seed in range(EPISODES):
        yield numpy.asarray(instance.reset(seed=seed)[0]).tolist()
        for _ in range(STEPS):
            observed, reward, over, cut, info = instance.step(int(rng.integers(instance.action_space.n)))
            yield numpy.asarray(observed).tolist(), reward, over, cut, str(info)
            if over or cut:
                break


KINDS = kinds("tasks") | kinds("environments")


@pytest.mark.parametrize("name", KINDS)
def test_every_size_has_an_effect(name: str) -> None:
    kind, parameters = KINDS[name], dict(signature(KINDS[name]).parameters)
    parameters.pop("render_mode", None)
    usual = {key: parameter.default for key, parameter in parameters.items()} | SMALL.get(name, {})
    variants = [("", None), *((key, candidate) for key in usual for candidate in other(parameters, usual, key)[:3])]
    for key in usual:
        for changed, value in variants:
            base = {**usual, changed: value} if changed else usual
            before = run_kind(kind, base)
            if changed == key or before is None or (name, key, changed, value) in ONE:
                continue
            after = (run_kind(kind, {**base, key: candidate}) for candidate in other(parameters, usual, key))
            assert any(candidate is not None and candidate != before for candidate in after), (key, changed, value)


def other(parameters: dict[str, Any], usual: dict[str, Any], key: str) -> list[Any]:
    return values(key, parameters[key].annotation, usual[key])
