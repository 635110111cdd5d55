"""Arrays by name, from an .npz."""

from pathlib import Path

import numpy


def read_arrays(path: Path) -> dict[str, numpy.ndarray]:
    """All arrays of a file, none of them objects; ValueError, in one line, for what is no .npz, or a damaged one."""
    try:
        # opened here, since numpy leaves a file open where it finds it damaged
        with path.open("rb") as file, numpy.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # numpy, zipfile, zlib and a parser of Python's words, each by errors of its own
        raise ValueError(f"{path} is no .npz of arrays, or cut off") from error
