"""Time of a training step, measured before a training to announce how long it takes."""

from time import monotonic

import torch

from kinformer.core.model import Model
from kinformer.lab.cost.cost import sample_rows
from kinformer.lab.data.batches import device_of
from kinformer.lab.train.settings import Precision


def step_seconds(model: Model, batch: int, length: int, precision: Precision = "float32") -> float:
    """Return the seconds of a forward and backward pass on random rows, the second of two.

    model: the model; its weights stay as they are.
    batch: rows of a batch.
    length: tokens of a row.
    precision: "bf16" runs the forward pass in bfloat16 by autocast.

    Errors: ValueError if the model does not take such rows.
    """
    rows, device, seconds = sample_rows(model, batch, length), device_of(model), 0.0
    for _ in range(2):
        began = monotonic()
        state = model.start(batch, length) if model.lanes else None
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = model(rows, state, 0.5)
        loss.total.backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = monotonic() - began
        model.zero_grad(set_to_none=True)
    return seconds
