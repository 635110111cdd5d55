"""Free memory for a training, and models built without their weights to estimate what they need."""

from pathlib import Path
from typing import Any

import torch

from kinformer.core.discover import modules
from kinformer.core.uninitialised import Uninitialised
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import MemberChoice

NUMBERS = 4  # numbers per weight: itself, its gradient and AdamW's two means


def build_without_numbers(choice: MemberChoice) -> Any | None:
    """Build a model without memory for its weights, on the meta device.

    None if its construction needs the values of weights.

    choice: the member and its keywords.
    """
    modules("patterns")  # imported first, because patterns created at import must have numbers
    try:
        with from_user(ValueError, TypeError, LookupError), torch.device("meta"), Uninitialised():
            return choice.function(**choice.keywords)
    except UserError:
        raise
    except Exception:
        return None


def free_memory(device: torch.device | None = None) -> int | None:
    """Return the free bytes of a device; None if unknown.

    device: the device; None is the GPU, or the machine if it has no GPU.
    """
    if torch.cuda.is_available() if device is None else device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
