"""The memory that is free for a training, and models built without their numbers to estimate what they need."""

from pathlib import Path
from typing import Any

import torch

from kinformer.core.discover import modules
from kinformer.lab.cost.uninitialised import Uninitialised
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import MemberChoice

NUMBERS = 4  # of each weight: itself, its gradient and AdamW's two means


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
