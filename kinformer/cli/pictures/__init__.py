"""Pictures of parts: one file per picture, found by the folder.

A file's `pictures(example, length)` yields what it draws of an example (a pattern, a module) and nothing where it has
nothing to say of it. It asks the part by its public contract: patterns are called, mechanisms and memories are run, and
what they were handed is looked at. `length` is how many positions are wanted, None for as many as show what there is.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinformer.cli.pictures.support.panel import Picture


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """Everything that the files of this folder draw of an example, in the order of their names."""
    import torch

    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not found.ispkg:
            drawer = importlib.import_module(f"{__name__}.{found.name}")
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(0)
                yield from drawer.pictures(example, length)
