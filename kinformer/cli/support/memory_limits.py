"""Estimates of the memory that a training or a decoding state needs: what does not fit is refused in one line."""

from typing import Any

from torch import nn

from kinformer.core.model import Forecaster
from kinformer.core.state import leaves
from kinformer.lab.byte_units import size
from kinformer.lab.cost.free_memory import NUMBERS, build_without_numbers, free_memory
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import MemberChoice

KEPT = 3  # of each number that a layer gives: itself, its gradient, and what it was made from


def refuse_too_large(choice: MemberChoice, batch: int, length: int) -> None:
    """UserError where weights, or what a batch keeps for its gradients, are surely more than the memory that is there.

    A plain estimate from the widths of a model that is built without its numbers; what cannot be built so, or a machine
    that does not tell its memory, is let pass.
    """
    free_bytes = free_memory()
    if free_bytes is None:
        return
    if (model := build_without_numbers(choice)) is None:
        return
    row = KEPT * length * _kept_numbers(model)
    fits = free_bytes // max(4 * row, 1)
    less = f"a --batch of at most {fits:,}, or read it in pieces by --accumulate" if fits else "a smaller --length"
    for subject, needed, advice in (
        ("the weights", NUMBERS * _weights(model), "a smaller model"),
        (f"a batch of {batch:,} x {length:,}", batch * row, less),
    ):
        if 4 * needed > free_bytes:
            raise UserError(
                f"{choice.text}: {subject} and their gradients take about {size(4 * needed)}, and {size(free_bytes)} "
                f"of memory are there; give {advice}"
            )


def decides_length(model: Any) -> bool:
    """True if the model itself fixes the length of its rows, as forecasters and models of pictures do."""
    return isinstance(model, Forecaster) or getattr(model, "reads", None) == "images"


def refuse_no_room(model: Any, rows: int, tokens: int) -> None:
    """UserError where the state for rows of so many tokens is more than the memory that is there.

    A model that keeps none, or does not make it without numbers, is let pass.
    """
    free_bytes = free_memory()
    try:
        state = model.start(rows, tokens if model.window is None else min(tokens, model.window), device="meta")
    except Exception:
        return
    tensors = {id(leaf): leaf for _, leaf in leaves(state)}
    needed = sum(leaf.numel() * leaf.element_size() for leaf in tensors.values())
    if free_bytes is not None and needed > free_bytes:
        raise UserError(
            f"the state of {rows:,} x {tokens:,} tokens takes {size(needed)}, and {size(free_bytes)} of memory are "
            "there; give fewer tokens, or use a member whose state does not grow, like transformer_xl"
        )


def _weights(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _kept_numbers(model: nn.Module) -> int:
    """How many numbers a token gets from the linear layers of a model, which are most that it keeps."""
    return sum(module.out_features for module in model.modules() if isinstance(module, nn.Linear))
