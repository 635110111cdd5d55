"""What a training would need, estimated before it is taken: what is too large for a machine is refused in one line."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinformer.cli.errors import UserError, from_user
from kinformer.cli.support.undrawn import Uninitialised
from kinformer.cli.support.wanted import MemberChoice
from kinformer.core.discover import modules
from kinformer.core.model import Forecaster
from kinformer.pages.units import size

NUMBERS = 4  # of each weight: itself, its gradient and AdamW's two means
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


def build_without_numbers(choice: MemberChoice) -> Any | None:
    """The model built without its numbers; None where it draws or looks at numbers while it is built."""
    modules("patterns")  # imported by the first that reads an expression, and what they make must have numbers
    try:
        with from_user(ValueError, TypeError, LookupError), torch.device("meta"), Uninitialised():
            return choice.function(**choice.keywords)
    except UserError:
        raise
    except Exception:
        return None


def decides_length(model: Any) -> bool:
    """True if the model itself fixes the length of its rows, as forecasters and models of pictures do."""
    return isinstance(model, Forecaster) or getattr(model, "reads", None) == "images"


def free_memory() -> int | None:
    """The bytes of memory that are free where a training would run; None where nobody tells."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _weights(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _kept_numbers(model: nn.Module) -> int:
    """How many numbers a token gets from the linear layers of a model, which are most that it keeps."""
    return sum(module.out_features for module in model.modules() if isinstance(module, nn.Linear))
