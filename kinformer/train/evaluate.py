"""Bits per byte on a text: no chance in it, no byte scored twice, the same bytes for every model."""

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
    window has at least half a window before it. One that fills in what it hides (`masks`) reads windows side by side
    and is scored on the bytes that a fixed draw chooses, all around them known: its bits compare with its like alone.
    Raises ValueError where there are fewer than two bytes, or none is chosen.
    """
    text = text[:limit]
    if len(text) < 2:
        raise ValueError(f"the text to evaluate on is too short: {len(text)} bytes are there, and 2 are needed")
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            if masks(model):
                return _filled(model, text, length)
            nats = sum(_carried(model, text, length) if carries(model) else _windows(model, text, length))
    finally:
        model.train(training)
    return Score(nats / math.log(2) / (len(text) - 1), len(text) - 1)


def carries(model: nn.Module) -> bool:
    """Whether a model is trained with its state carried from batch to batch."""
    return bool(getattr(model, "recurrent", False))


def masks(model: nn.Module) -> bool:
    """Whether a model fills in bytes that it hides by its own `hide`, and so predicts no next one."""
    return callable(getattr(model, "hide", None))


def unit(model: nn.Module) -> str:
    """What a score of the model is called."""
    return "bits per masked byte" if masks(model) else "bits per byte"


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


def _filled(model: Any, text: Tensor, length: int) -> Score:
    device, generator = device_of(model), torch.Generator().manual_seed(0)
    nats, count = 0.0, 0
    for rows in text.split(BATCH * length):
        whole = rows[: len(rows) // length * length].view(-1, length)
        rest = rows[whole.numel() :].view(1, -1)
        for some in (part for part in (whole, rest) if part.numel()):
            read, wanted = (tokens.to(device) for tokens in model.hide(some.long(), generator))
            chosen = wanted >= 0
            nats += _nats(model.logits(read).y[chosen][None], wanted[chosen][None])
            count += int(chosen.sum())
    if not count:
        raise ValueError(f"of the {len(text)} bytes to evaluate on none was chosen to be hidden; give more text")
    return Score(nats / math.log(2) / count, count)
