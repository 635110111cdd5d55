"""Bits per byte on a text: no chance in it, every byte scored once, the same bytes for every model."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCH = 16


@dataclass(frozen=True)
class Score:
    """Bits per byte, and how many bytes were scored."""

    bits: float
    bytes: int


def evaluate(model: nn.Module, text: UInt8[Tensor, "N"], length: int, limit: int | None = None) -> Score:
    """The bits per byte a model needs for a text, or for its first `limit` bytes, in order, in eval mode.

    Every byte but the first, which nothing predicts, is scored exactly once. A model that carries a state reads the
    text as one lane, `length` tokens at a time, and forgets nothing between. Another reads windows of `length` tokens,
    each half a window after the one before, and is scored on the half that is new: every byte but those of the first
    window has at least half a window before it. Raises ValueError where there are fewer than two bytes.
    """
    text = text[:limit]
    if len(text) < 2:
        raise ValueError(f"the text to evaluate on is too short: {len(text)} bytes are there, and 2 are needed")
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            nats = sum(_carried(model, text, length) if carries(model) else _windows(model, text, length))
    finally:
        model.train(training)
    return Score(nats / math.log(2) / (len(text) - 1), len(text) - 1)


def carries(model: nn.Module) -> bool:
    """Whether a model is trained with its state carried from batch to batch."""
    return bool(getattr(model, "recurrent", False))


def device_of(model: nn.Module) -> torch.device:
    """Where a model's parameters are."""
    return next(model.parameters()).device


def _nats(logits: Tensor, targets: Tensor) -> float:
    return float(cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").double().sum())


def _carried(model: Any, text: Tensor, length: int) -> Iterator[float]:
    device = device_of(model)
    state = model.start(1, len(text) - 1, device=device)
    for first in range(0, len(text) - 1, length):
        tokens = text[None, first : first + length + 1].long().to(device)
        out = model.logits(tokens[:, :-1], state)
        state = out.state
        yield _nats(out.y, tokens[:, 1:])


def _windows(model: Any, text: Tensor, length: int) -> Iterator[float]:
    device, last = device_of(model), len(text) - 1
    length = min(length, last)
    stride = max(length // 2, 1)
    ends = [*range(length, last, stride), last]
    news = [length, *(end - before for before, end in zip(ends, ends[1:], strict=False))]
    for some in range(0, len(ends), BATCH):
        rows = torch.stack([text[end - length : end + 1] for end in ends[some : some + BATCH]]).long().to(device)
        logits = model.logits(rows[:, :-1]).y
        for row, new in enumerate(news[some : some + BATCH]):
            yield _nats(logits[row : row + 1, -new:], rows[row : row + 1, -new:])
