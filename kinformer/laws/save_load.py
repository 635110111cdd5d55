"""Law save_load: a part or model computes the same after saving and loading."""

import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from kinformer.checkpoint.checkpoint import load, save
from kinformer.core.after_step import after_step
from kinformer.core.discover import MemberRecord, find_member
from kinformer.laws.support.comparisons import agree_out
from kinformer.laws.support.findings import Broken, findings
from kinformer.laws.support.subject import Subject, TrainingSubject

SAYS = "after saving and loading, the part computes the same"
OVER = ("layer", "model")
LENGTH = 7


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Save and load a layer or model, and yield a sentence for each result that differs.

    subject: a layer or model with the part to test.

    A model of a member (a named model of the library) is saved in a folder and loaded. Any other module is rebuilt with
    another seed, and loads the `state_dict`. `after_step` (changes after a training step) is called once before saving.
    It is called once more on both modules afterwards. A counter of steps must therefore be saved too.
    """
    yield from findings(_check_same, subject, subject.build())


def _check_same(subject: Any, module: Any) -> None:
    stats = _train_step(subject, module)
    after_step(module, 0.5, stats)
    member = isinstance(getattr(module, "member", None), MemberRecord)
    loaded = _through_a_folder(module) if member else _through_numbers(subject, module)
    if _shared_parameters(loaded) != _shared_parameters(module):
        raise Broken(
            f"before saving, parameters are shared by {_shared_parameters(module)}, but after loading by "
            f"{_shared_parameters(loaded)}"
        )
    _compare(subject, module, loaded, "the result is different after saving and loading")
    for model in (module, loaded):
        after_step(model, 0.6, stats)
    _compare(subject, module, loaded, "the result is different after saving, loading and one more after_step")


def _compare(subject: Any, module: Any, loaded: Any, sentence: str) -> None:
    batch = subject.ragged(LENGTH)
    with torch.no_grad():
        expected, actual = subject.call(module, batch), subject.call(loaded, batch)
    agree_out(actual, expected, sentence, batch.pos, bound=1e-12)


def _train_step(subject: Any, module: Any) -> Mapping[str, Tensor]:
    """Return the stats of a call in train mode."""
    with torch.no_grad():
        stats = subject.call(module.train(), subject.ragged(LENGTH)).stats
    module.eval()
    return stats


def _through_numbers(subject: Any, module: Any) -> Any:
    loaded = subject.build(seed=1)
    loaded.load_state_dict(module.state_dict())
    return loaded


def _through_a_folder(module: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        save(module, folder)
        file = module.member.file
        loaded = load(folder, find_member(f"{file}:{module.member.name}") if file else None)
    if loaded.member != module.member:
        raise Broken(f"the saved member is {module.member}, but the loaded member is {loaded.member}")
    return loaded


def _shared_parameters(module: Any) -> list[list[str]]:
    """Return the groups of names that share a parameter."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return sorted(group for group in names.values() if len(group) > 1)
