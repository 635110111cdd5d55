"""All pictures of an example, from every file of the pictures folder."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinformer.pages.pictures.support.drawer import in_turn
from kinformer.pages.pictures.support.picture_panels import Picture


def pictures(example: Any, length: int | None, *, but: str = "") -> Iterator[Picture]:
    """Yield every picture that the files of the folder draw of an example, in the order of the file names.

    example: an attention pattern, or a module such as a layer or a model.
    length: number of positions; None lets each picture choose.
    but: name of a file to leave out, without .py; "" for none.
    """
    files = pkgutil.iter_modules([str(Path(__file__).parents[1])])
    names = [file.name for file in files if not file.ispkg and file.name != but]
    drawers = (importlib.import_module(f"kinformer.pages.pictures.{name}").pictures for name in names)
    yield from in_turn(*drawers)(example, length)
