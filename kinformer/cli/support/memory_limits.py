"""Estimates of memory that refuse a training or a decoding state which does not fit."""

from typing import Any

import torch
from torch import nn

from kinformer.core.model import Forecaster
from kinformer.core.state import state_bytes
from kinformer.lab.byte_units import size
from kinformer.lab.cost.free_memory import NUMBERS, build_without_numbers, free_memory
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import MemberChoice

KEPT = 3  # numbers to keep for each output of a linear layer: the output, its gradient and its input


def refuse_too_large(
    choice: MemberChoice, batch: int, length: int, device: torch.device | None = None, *, frozen: bool = False
) -> None:
    """Refuse a training if its weights or activations certainly exceed the free memory.

    choice: the member.
    batch: rows of a batch.
    length: tokens of a row.
    device: the device; None is the GPU if there is one, otherwise the CPU.
    frozen: True if nearly all weights are frozen, so that they have no gradients and no numbers of an optimiser.

    The estimate uses only the widths of the linear layers. A member that cannot be built without weights is not
    refused, and no member is refused if the machine does not report its memory. Errors: UserError.
    """
    free_bytes = free_memory(device)
    if free_bytes is None:
        return
    if (model := build_without_numbers(choice)) is None:
        return
    row = KEPT * length * _kept_numbers(model)
    fits = free_bytes // max(4 * row, 1)
    less = f"a --batch of at most {fits:,}, or split it with --accumulate" if fits else "a smaller --length"
    for subject, needed, advice in (
        ("the weights", (1 if frozen else NUMBERS) * _weights(model), "a smaller model"),
        (f"the activations of a batch of {batch:,} rows of {length:,} tokens", batch * row, less),
    ):
        if 4 * needed > free_bytes:
            raise UserError(
                f"{choice.text} does not fit in memory: {subject} and their gradients need about {size(4 * needed)}, "
                f"but {size(free_bytes)} are free. Give {advice}"
            )


def decides_length(model: Any) -> bool:
    """True if the model itself fixes the length of its rows, as forecasters and image models do.

    model: any model.
    """
    return isinstance(model, Forecaster) or getattr(model, "reads", None) == "images"


def refuse_no_room(model: Any, rows: int, tokens: int) -> None:
    """Refuse to generate if the decoding state of the model exceeds the free memory.

    model: the model; it is not refused if it has no decoding state, or if the state cannot be built on the meta device.
    rows: number of texts that are generated at once.
    tokens: tokens of each text, with its prompt.

    Errors: UserError.
    """
    free_bytes = free_memory()
    try:
        state = model.start(rows, tokens if model.window is None else min(tokens, model.window), device="meta")
    except Exception:
        return
    needed = state_bytes(state)
    if free_bytes is not None and needed > free_bytes:
        raise UserError(
            f"the decoding state of {rows:,} rows of {tokens:,} tokens needs {size(needed)}, but {size(free_bytes)} "
            "are free. Give fewer tokens, or use a member whose state does not grow, such as transformer_xl"
        )


def _weights(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _kept_numbers(model: nn.Module) -> int:
    """The number of outputs of all linear layers per token, which are most of the stored activations."""
    return sum(module.out_features for module in model.modules() if isinstance(module, nn.Linear))
