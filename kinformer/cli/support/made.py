"""Files that commands made of a model's weights and keep beside them, and what a training does to those."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kinformer.checkpoint.files import crc32
from kinformer.checkpoint.kept import WEIGHTS

MADE = {"exits.json": "calibrate", "knn-lm.json": "knn-lm"}  # and the command that makes each


@contextmanager
def warn_of_outdated_files(folder: Path) -> Iterator[None]:
    """Say which of them are of weights that are no longer in the folder, where others come to lie there meanwhile."""
    before = _checksum(folder)
    try:
        yield
    finally:
        if before not in (None, _checksum(folder)):
            for name, command in MADE.items():
                if (folder / name).is_file():
                    advice = f"`kinformer {command} {folder}` makes it anew"
                    print(f"{folder / name} is of the weights that were there before; {advice}", file=sys.stderr)


def _checksum(folder: Path) -> int | None:
    """Of the weights in a folder; None where there are none."""
    path = folder / WEIGHTS
    return crc32(path) if path.is_file() else None
