"""Small models in folders, for the tests of commands that use one."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinformer.checkpoint.checkpoint import save
from kinformer.core.discover import find_member

SMALL = {"d": 16, "depth": 1, "heads": 2}


def folder(path: Path, name: str, seed: int = 0, **keywords: Any) -> str:
    """A folder with a small model of a member, its weights larger than at the start of a training."""
    torch.manual_seed(seed)
    model = find_member(name)(**{**SMALL, **keywords})
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.4)
    save(model, path)
    return str(path)
