"""What mechanisms inside a layer gave: the lse of their reads, by which reads are merged and which no output shows."""

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
    """One read: its rows and columns, and its lse [B H T] where it gave one."""

    rows: int
    columns: int
    lse: Tensor | None


LseRecord = dict[str, list[MechanismRead]]


@contextmanager
def record_lse(module: Any) -> Iterator[LseRecord]:
    """While this lasts, the reads of every mechanism are written down by its name, in the order of calls."""
    calls: LseRecord = {}

    def note(name: str, inputs: tuple, out: Any) -> None:
        if not (isinstance(inputs[-1], Context) and inputs[-1].remember):  # nobody wants what such a call reads
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
    """Broken unless every mechanism that read each token once, in both cases, gave the same lse or none."""
    for name in sorted(expected.keys() & actual.keys()):
        if not all(_each_once(calls[name], pos) for calls in (actual, expected)):
            continue
        mine, theirs = (_join(calls[name]) for calls in (actual, expected))
        description = f"{sentence} (the lse of {name or 'its reads'})"
        if mine is not None and theirs is not None:
            agree(mine, theirs, description, pos=pos)
        elif mine is not theirs:
            raise Broken(f"{description}: there is one in one case and none in the other")


def _each_once(calls: list[MechanismRead], pos: Tensor) -> bool:
    """Were all rows read, and each token by one call? Layers that repeat, and rows that leave, read otherwise."""
    return all(call.rows == len(pos) for call in calls) and sum(call.columns for call in calls) == pos.shape[1]


def _join(calls: list[MechanismRead]) -> Tensor | None:
    """The lse of all calls as [B T H]; None where one gave none."""
    lses = [call.lse for call in calls if call.lse is not None]
    return torch.cat(lses, 2).transpose(1, 2) if len(lses) == len(calls) else None
