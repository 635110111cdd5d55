"""Refusals before a training: what learns to say what comes next must not see it, and must be able to go on."""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kinformer.core.example import Example
from kinformer.core.mechanism import NoState
from kinformer.core.model import Model, Predictor, called
from kinformer.data.batches import on

LENGTH = 24
FEWEST = 4  # cuts of a row that is longer
SAME = 1e-4  # a leak of one token in 24 changes logits by thousands of times as much


def refuse_ahead(model: Model, length: int) -> None:
    """ValueError for a model that predicts what comes next and reads it, or cannot decode.

    Where a part declares by its example's `breaks` that it reads ahead, one line warns of it.
    """
    if not model.predicts_next:
        return
    name = called(model)
    if isinstance(model, Predictor) and leaks(model, min(length, LENGTH)):
        reason = next(_declared(model), None)
        if reason is None:
            raise ValueError(
                f"this {name} reads ahead: what it says of a token changes with the tokens after it, so its loss would "
                "mean nothing; narrow its patterns by Causal() &, or train it as an MLM"
            )
        warnings.warn(f"this {name} reads ahead, as its part declares: {reason}", stacklevel=2)
    try:
        model.start(1, length)
    except NoState as error:
        raise ValueError(f"this {name} learns what comes next and cannot go on token by token: {error}") from error


def leaks(model: Predictor, length: int) -> bool:
    """Does anything that the model says of a token change with tokens after it?

    Tried at every cut of a random row, and at a few where a row is as long as it is, whatever `length` says.
    """
    device = next(model.parameters()).device
    (tokens, given), (others, _) = (model.inputs(on(device, model.sample(1, length, seed))) for seed in (0, 1))
    every = tokens.shape[1]
    cuts = torch.arange(1, every, max(1, every // max(FEWEST, LENGTH**2 // max(every, 1))), device=device)
    if not len(cuts):
        return False
    before = torch.arange(every, device=device) < cuts[:, None]  # [cuts T]
    kept = before.view(*before.shape, *(1 for _ in tokens.shape[2:]))
    rows = torch.cat([tokens, torch.where(kept, tokens, others)])
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            y = model.says(rows, **{key: _repeated(value, len(rows)) for key, value in given.items()}).float()
    finally:
        model.train(training)
    changed = torch.where(before[..., None], y[1:] - y[:1], 0.0).abs().amax()
    return bool(changed > SAME * y.abs().amax())


def _repeated(value: Any, rows: int) -> Any:
    return value.expand(rows, *value.shape[1:]) if isinstance(value, Tensor) else value


def _declared(model: Model) -> Iterator[str]:
    """The reasons by which parts of the model, or its member, declare that they read ahead."""
    files = {type(module).__module__ for module in model.modules()}
    record = getattr(model, "member", None)
    if record is not None:
        files.add(f"kinformer.members.{record.name}")
    for file in sorted(files):
        for entry in getattr(sys.modules.get(file), "EXAMPLES", ()):
            if isinstance(entry, Example) and "peek" in entry.breaks:
                yield entry.breaks["peek"]
