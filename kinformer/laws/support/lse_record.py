"""Records of the lse (log-sum-exp of the scores) of every attention call inside a layer.

Outputs of attention calls are merged by their lse, but the output of a layer does not show it.
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
    """One attention call of a mechanism, recorded while a law calls the layer around it.

    rows: number of rows of the batch.
    columns: length of the rows of queries in tokens, padding included.
    lse: log-sum-exp of the scores of each query [B H T], or None if the mechanism returns none.
    """

    rows: int
    columns: int
    lse: Tensor | None


LseRecord = dict[str, list[MechanismRead]]


@contextmanager
def record_lse(module: Any) -> Iterator[LseRecord]:
    """Record the attention calls of every mechanism of a module inside a `with` block.

    The dict has a list of calls, in their order, for the name of each mechanism.

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
    """Raise Broken (a law does not hold) unless every mechanism gave the same lse in two records.

    The lse is the log-sum-exp of attention scores; both may also be missing. A mechanism is compared only if each token
    was a query in exactly one call, in both records.

    actual, expected: the records, from `record_lse`.
    sentence: beginning of the error text, which says what differs.
    pos: positions [B T]; padding (-1) is not compared.
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
    """Return True if the calls read all rows, and each token once: no repeated layer, no early exit."""
    return all(call.rows == len(pos) for call in calls) and sum(call.columns for call in calls) == pos.shape[1]


def _join(calls: list[MechanismRead]) -> Tensor | None:
    """Return the lse of all calls as [B T H], or None if a call has none."""
    lses = [call.lse for call in calls if call.lse is not None]
    return torch.cat(lses, 2).transpose(1, 2) if len(lses) == len(calls) else None
