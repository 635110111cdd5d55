"""Law dropout: every part with a dropout rate drops numbers in train mode and never in eval mode."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from kinformer.core.dropout import dropout_parts
from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern
from kinformer.laws.support.comparisons import agree_out
from kinformer.laws.support.dropout_on import drop_share
from kinformer.laws.support.findings import Broken, Unjudged, findings
from kinformer.laws.support.subject import ROWS, Subject, TrainingSubject

SAYS = "every dropout drops numbers in train mode and none in eval mode"
OVER = ("layer", "model")
LENGTH = 7


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Compare results with a dropout rate of one half and without dropout, and yield each fault.

    subject: a layer or model with the part to test.

    In eval mode the results must be equal. In train mode they must differ if only the parts of one class have dropout,
    for each class.
    """
    module = subject.build()
    parts = dropout_parts(module)
    if not parts:
        raise Unjudged("no module inside has dropout")
    yield from findings(_never_in_eval, subject, module, parts)
    limited = isinstance(subject, Subject) and (subject.only is not None or subject.also is not None)
    if not subject.tried and not limited:  # other uses have the same parts, and limits may leave nothing to drop
        yield from findings(_in_training, subject, module.train(), parts)


def _never_in_eval(subject: Any, module: nn.Module, parts: list[nn.Module]) -> None:
    batch = subject.ragged(LENGTH)
    expected_outs = [subject.call(module, batch, state) for state in subject.states(module, ROWS, LENGTH)]
    with drop_share(parts, 0.5):
        for state, expected in zip(subject.states(module, ROWS, LENGTH), expected_outs, strict=True):
            actual = subject.call(module, batch, state)
            agree_out(
                actual,
                expected,
                "with dropout 0.5, eval mode gives a different result than without dropout",
                batch.pos,
                bound=1e-12,
            )


def _in_training(subject: Any, module: nn.Module, parts: list[nn.Module]) -> None:
    want = _call_seeded(subject, module)
    by_kind: dict[type, list[nn.Module]] = {}
    for part in parts:
        if not _reads_nothing(part):
            by_kind.setdefault(type(part), []).append(part)
    for kind, alike in by_kind.items():
        with drop_share(alike, 0.5):
            if torch.equal(_call_seeded(subject, module), want):
                raise Broken(
                    f"with dropout 0.5 in {kind.__name__}, train mode gives the same result as without dropout"
                )


def _call_seeded(subject: Any, module: nn.Module) -> Tensor:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return subject.call(module, subject.ragged(LENGTH)).y


def _reads_nothing(part: nn.Module) -> bool:
    """Return True for a mechanism with a pattern that allows no pair."""
    pattern = getattr(part, "pattern", None)
    return isinstance(part, Mechanism) and isinstance(pattern, Pattern) and not bool(pattern.matrix(LENGTH).any())
