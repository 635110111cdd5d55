"""In the long run: every member that reads tokens takes rows of a task, of one length and of several, and a
small gpt learns what it can.

Not asked: recall of many pairs, MQAR, in-context recall, long induction and needles, which take it thousands of steps,
and parity, which it does not learn.
"""

import inspect

import pytest
import torch

from kinformer.core.discover import find_member, members
from kinformer.core.model import ACCURACY
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.task import SERVES
from kinformer.lab.train.fit import fit
from kinformer.members.gpt import gpt

TINY = {"d": 16, "depth": 2, "heads": 2, "hidden": 16}


@pytest.mark.prove
@pytest.mark.parametrize("spec", ["task=recall,pairs=3", "task=listops,longest=20"])
@pytest.mark.parametrize("name", sorted(members()))
def test_every_member_takes_a_task(name: str, spec: str) -> None:
    function = find_member(name)
    parameters = inspect.signature(function).parameters
    model = function.rebuild(**{key: n for key, n in TINY.items() if key in parameters})  # type: ignore[attr-defined]
    if model.reads not in SERVES:
        with pytest.raises(ValueError, match=f"this {name} reads .*, but got a task; give "):
            fit(model, spec, steps=1, batch=4)
        return
    history = fit(model, spec, steps=1, batch=4)
    assert history.metric == ACCURACY and 0 <= history.best.valid <= 1


@pytest.mark.prove
@pytest.mark.parametrize(
    ("spec", "steps", "least"),
    [
        ("task=copy", 300, 0.6),
        ("task=copy_at_distance,distance=4,times=4", 300, 0.95),
        ("task=reverse,length=5", 300, 0.95),
        ("task=recall,pairs=3", 400, 0.5),
        ("task=induction,length=8,symbols=8", 300, 0.9),
        ("task=needle,length=40,digits=1", 300, 0.9),
        ("task=addition", 800, 0.6),
        ("task=sorting", 300, 0.95),
        ("task=listops,longest=30", 300, 0.4),
        ("task=memorization", 300, 0.9),
        ("task=sequence_compression", 300, 0.9),
        ("task=selective_copying,length=4,dots=8", 300, 0.8),
    ],
)
def test_a_small_gpt_learns_it(spec: str, steps: int, least: float) -> None:
    torch.manual_seed(0)
    history = fit(gpt(d=64, depth=2, heads=4), spec, steps=steps, batch=32)
    guessing = read_spec(spec).task.chance_accuracy  # type: ignore[attr-defined]
    assert history.best.valid > least > guessing + 0.2
