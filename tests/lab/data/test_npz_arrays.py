"""Arrays of an .npz: as they were written; what is none, or damaged, is refused in one line."""

import random
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest

from kinformer.lab.data.support.npz_arrays import read_arrays

HELD = {"x": numpy.arange(12.0).reshape(3, 4), "y": numpy.arange(3)}


@pytest.mark.parametrize("write", [numpy.savez, numpy.savez_compressed])
def test_what_was_written_is_read(write: Any, tmp_path: Path) -> None:
    write(tmp_path / "a.npz", **HELD)
    loaded = read_arrays(tmp_path / "a.npz")
    assert loaded.keys() == HELD.keys() and all(numpy.array_equal(loaded[name], x) for name, x in HELD.items())


@pytest.mark.parametrize("write", [numpy.savez, numpy.savez_compressed])
def test_a_damaged_file_is_read_or_refused_in_one_line(write: Any, tmp_path: Path) -> None:
    """A bit of it turned, or its end cut off."""
    path, rng, refused = tmp_path / "a.npz", random.Random(0), 0
    write(path, **HELD)
    whole = path.read_bytes()
    for turn in range(150):
        cut = bytearray(whole[: rng.randrange(len(whole))] if turn % 5 == 0 else whole)
        if cut:
            cut[rng.randrange(len(cut))] ^= 1 << rng.randrange(8)
        path.write_bytes(cut)
        try:
            read_arrays(path)
        except ValueError as error:
            refused += 1
            assert str(error) == f"{path} is not a .npz of arrays, or is damaged; give another file"
    assert refused > 30  # the cut ones at least


def test_other_files_by_that_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with path.open("wb") as file:
        numpy.save(file, HELD["x"])
    with pytest.raises(ValueError, match=r"is not a \.npz of arrays"):
        read_arrays(path)
    numpy.savez(path, x=numpy.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"is not a \.npz of arrays"):
        read_arrays(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': (\n     \n")  # a header without an end
    with pytest.raises(ValueError, match=r"is not a \.npz of arrays"):
        read_arrays(path)
