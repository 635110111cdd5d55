"""Records of the lse of mechanisms inside a layer.

Reads are merged by their lse, but no output shows it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism
from kinformer.laws.support.comparisons import agree
from kinformer.laws.support.findings import Broken


class MechanismRead(NamedTuple):
    """One read of a mechanism.

    rows, columns: its numbers of rows and of query columns.
    lse: its lse [B H T], or None.
    """

    rows: int
    columns: int
    lse: Tensor | None


LseRecord = dict[str, list[MechanismRead]]


@contextmanager
def record_lse(module: Any) -> Iterator[LseRecord]:
    """Record the reads of every mechanism by its name while the context is entered, in the order of calls.

    module: the module with the mechanisms.
    """
    calls: LseRecord = {}

    def note(name: str, inputs: tuple, out: Any) -> None:
        if not (isinstance(inputs[-1], Context) and inputs[-1].remember):  # the result of such a call is not used
            rows, _, columns, _ = inputs[0].q.shape
            calls.setdefault(name, []).append(MechanismRead(rows, columns, out.y.lse))

    hooks = [
        part.register_forward_hook(lambda part, inputs, out, name=name: note(name, inputs, out))
        for name, part in module.named_modules()
        if isinstance(part, Mechanism)
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def agree_lse(actual: LseRecord, expected: LseRecord, sentence: str, pos: Tensor) -> None:
    """Raise Broken unless every mechanism gave the same lse, or none, in both cases.

    A mechanism is compared only if it read each token exactly once in both cases.

    actual, expected: the records.
    sentence: beginning of the finding.
    pos: positions [B T]; padding is not compared.
    """
    for name in sorted(expected.keys() & actual.keys()):
        if not all(_each_once(calls[name], pos) for calls in (actual, expected)):
            continue
        mine, theirs = (_join(calls[name]) for calls in (actual, expected))
        description = f"{sentence} (the lse of {name or 'its reads'})"
        if mine is not None and theirs is not None:
            agree(mine, theirs, description, pos=pos)
        elif mine is not theirs:
            raise Broken(f"{description}: only one of the two calls has it")


def _each_once(calls: list[MechanismRead], pos: Tensor) -> bool:
    """Return True if all rows were read, and each token by one call. Repeated layers and early exits differ."""
    return all(call.rows == len(pos) for call in calls) and sum(call.columns for call in calls) == pos.shape[1]


def _join(calls: list[MechanismRead]) -> Tensor | None:
    """Return the lse of all calls as [B T H], or None if a call has none."""
    lses = [call.lse for call in calls if call.lse is not None]
    return torch.cat(lses, 2).transpose(1, 2) if len(lses) == len(calls) else None
