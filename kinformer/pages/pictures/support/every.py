"""What all files of the folder draw of an example."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinformer.pages.pictures.support.panel import Picture


def pictures(example: Any, length: int | None, *, but: str = "") -> Iterator[Picture]:
    """Everything that the files of the folder draw of an example, in the order of their names; one may be left out."""
    import torch

    for found in pkgutil.iter_modules([str(Path(__file__).parents[1])]):
        if not found.ispkg and found.name != but:
            drawer = importlib.import_module(f"kinformer.pages.pictures.{found.name}")
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(0)
                yield from drawer.pictures(example, length)
