"""Named arrays of a .npz file."""

from pathlib import Path

import numpy


def read_arrays(path: Path) -> dict[str, numpy.ndarray]:
    """Read all arrays of the .npz file `path`, which must not contain object arrays.

    Errors: ValueError, in one line, if the file is not a .npz or is damaged.
    """
    try:
        # opened here, because numpy leaves a damaged file open
        with path.open("rb") as file, numpy.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # numpy, zipfile, zlib and the header parser raise different types
        raise ValueError(f"{path} is not a .npz of arrays, or is damaged; give another file") from error
