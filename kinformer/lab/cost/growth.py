"""Growth: time and memory of a part of a model as a function of row length, for `kinformer show`."""

import dataclasses
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from kinformer.core.pattern import Pattern
from kinformer.core.state import leaves
from kinformer.laws.support.input_batch import InputBatch, map_tensors
from kinformer.laws.support.subject import Subject

LENGTHS = tuple(16 * 2**n for n in range(8))
ENOUGH = 0.5  # seconds of a call after which the measurement ends
AGREE = 0.5  # largest difference between the exponents of two doublings
BARS = "▁▂▃▄▅▆▇█"


@dataclass
class Growth:
    """Measurements of one part of a model, such as an attention mechanism, for several row lengths.

    lengths: tokens of a row.
    seconds: seconds of a forward and backward pass.
    saved_bytes: bytes that are kept for the backward pass.
    state: bytes of the decoding state, if the part has one.
    """

    lengths: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    saved_bytes: list[float] = field(default_factory=list)
    state: list[float] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return one line of text per curve: bars of logarithmic height, then how it grows when a row doubles."""
        if len(self.lengths) < 2:
            return []
        rows = [("time", self.seconds, _seconds), ("memory", self.saved_bytes, _bytes), ("state", self.state, _bytes)]
        lines = [
            f"rows of {self.lengths[0]:,} to {self.lengths[-1]:,} tokens, each twice as long, width 16, one at a time"
        ]
        for name, values, format_value in rows:
            if values:
                ends = f"{format_value(values[0])} to {format_value(values[-1])}"
                grows = growth_text(values, name)
                lines.append(f"{name:<7}{bars(values)}  {ends}{grows and f'; {grows}'}")
        return lines


def measure(
    subject: Subject, device: torch.device | str = "cpu", autocast: AbstractContextManager | None = None
) -> Growth:
    """Measure a part on rows of doubling length, until a call takes half a second or the part fails.

    subject: the part.
    device: the device to compute on.
    autocast: context of the calls, such as `torch.autocast`; None computes in float32.
    """
    module, autocast = subject.build().float().to(device), autocast or nullcontext()
    stateful = subject.no_state(module) is None
    growth = Growth()
    seconds = 0.0
    for length in LENGTHS:
        try:
            calls = [_call(subject, module, length, device, autocast) for _ in range(3 if seconds > ENOUGH / 5 else 5)]
            seconds, saved_bytes = median(call[0] for call in calls), calls[-1][1]
            state = subject.start(module, 1, length, torch.float32) if stateful else ()
        except (IndexError, ValueError, RuntimeError):
            break  # a table of positions or the tensors of a pattern are shorter
        growth.lengths.append(length)
        growth.seconds.append(seconds)
        growth.saved_bytes.append(saved_bytes)
        if leaves(state):
            growth.state.append(sum(leaf.nbytes for _, leaf in leaves(state)))
        if seconds > ENOUGH:
            break
    return growth


def _call(
    subject: Subject, module: torch.nn.Module, length: int, device: torch.device | str, autocast: AbstractContextManager
) -> tuple[float, float]:
    """Return the seconds of a call with its gradients, and the bytes kept for the backward pass."""
    batch = _to_device(subject.batch([length]).to(torch.float32), device)
    parameter_storages = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameter_storages:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    begin = monotonic()
    with saved_tensors_hooks(note, lambda tensor: tensor), autocast:
        y = subject.call(module, batch).y
    if y.requires_grad:
        y.sum().backward()
    y[..., :1].sum().item()  # waits until the device has computed everything
    return monotonic() - begin, float(sum(saved.values()))


def _to_device(batch: InputBatch, device: torch.device | str) -> InputBatch:
    """Return a batch with its tensors, and the tensors of its patterns, on a device."""

    def move(value: Any) -> Any:
        if isinstance(value, Pattern):
            return map_tensors(value, lambda tensor: tensor.to(device))
        return value.to(device) if isinstance(value, Tensor) else value

    return InputBatch(*(move(getattr(batch, field.name)) for field in dataclasses.fields(batch)))


def power(values: Sequence[float]) -> float | None:
    """Return the exponent p with which a curve grows like length^p, from its last two doublings.

    If the two exponents differ a little, it is the smaller one.

    It is None if there are fewer than two doublings, or if their exponents differ by more than 0.5.

    values: one value for each length; each length is twice the one before.
    """
    if len(values) < 3:
        return None
    first, second = (math.log2(max(after, 1e-9) / max(before, 1e-9)) for before, after in pairwise(values[-3:]))
    return max(0.0, min(first, second)) if abs(first - second) <= AGREE else None


def growth_text(values: Sequence[float], what: str) -> str:
    """Return a sentence on the growth of a curve, such as "a row twice as long takes 2 times the memory".

    values: one value for each length; each length is twice the one before.
    what: name of the values, such as "memory".

    Returns "" if the last doublings do not agree.
    """
    exponent = power(values)
    if exponent is None:
        return ""
    times = round(2**exponent, 1)
    return f"any row takes the same {what}" if times == 1 else f"a row twice as long takes {times:g} times the {what}"


def bars(values: Sequence[float]) -> str:
    """Draw one character per value, with a height by the logarithm of the value.

    The smallest value has the lowest bar and the largest value the highest.

    values: the values.
    """
    logs = [math.log(max(value, 1e-9)) for value in values]
    low, high = min(logs), max(logs)
    return "".join(BARS[round((log - low) / (high - low) * (len(BARS) - 1)) if high > low else 0] for log in logs)


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.2g} s"


def _bytes(value: float) -> str:
    power = min(3, int(math.log(max(value, 1), 1024)))
    return f"{value / 1024**power:.3g} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"
