"""Arrays on disk, by a key of all that they were made from: made once, mapped into memory, remade where damaged."""

import json
import os
import shutil
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from kinformer.checkpoint.lock import locked
from kinformer.core.from_json import from_json

EDITION = 1  # of the form of an entry
CHUNK = 1 << 24


def home() -> Path:
    """Where entries lie: $KINFORMER_CACHE, or kinformer in $XDG_CACHE_HOME, ~/.cache unless given."""
    if given := os.environ.get("KINFORMER_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kinformer"


class To(ABC):
    """Where arrays are put, part by part, and what is said of them."""

    said: dict[str, Any]

    @abstractmethod
    def append(self, name: str, values: numpy.ndarray) -> None:
        """More of an array; all of its parts are of one dtype."""


class Entry(To):
    """Files being written, or read: `append` adds to an array, `arrays` maps them, `said` is what was said of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: dict[str, Any] = {}
        self._files: dict[str, Any] = {}
        self._kept: dict[str, dict[str, Any]] = {}

    def append(self, name: str, values: numpy.ndarray) -> None:
        if name not in self._files:
            self._files[name] = (self.folder / f"{name}.bin").open("wb")
            self._kept[name] = {"dtype": values.dtype.name, "bytes": 0, "crc32": 0}
        data, kept = values.tobytes(), self._kept[name]
        self._files[name].write(data)
        kept["bytes"] += len(data)
        kept["crc32"] = zlib.crc32(data, kept["crc32"])

    def close(self) -> None:
        """All of it on the disk, its list last."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        index = {"edition": EDITION, "arrays": self._kept, "said": self.said}
        with (self.folder / "entry.json").open("w") as file:
            json.dump(index, file)
            file.flush()
            os.fsync(file.fileno())

    def drop(self) -> None:
        """Nothing of it."""
        for file in self._files.values():
            file.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def whole(self) -> bool:
        """Is it there as it was written, byte for byte?"""
        try:
            index = from_json((self.folder / "entry.json").read_text())
            self.said, self._kept = index["said"], index["arrays"]
            same = [_crc(self.folder / f"{name}.bin") == kept["crc32"] for name, kept in self._kept.items()]
            return index["edition"] == EDITION and all(same)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    @property
    def arrays(self) -> dict[str, Tensor]:
        """All arrays, mapped: what is read of them is in memory only as long as the system likes."""
        return {name: _mapped(self.folder / f"{name}.bin", kept["dtype"]) for name, kept in self._kept.items()}


def kept(key: str, make: Callable[[Entry], None]) -> Entry:
    """The entry of a key, made where there is none or it is damaged.

    It is written beside its place and put there in one step, so a kill leaves nothing that would be taken for whole;
    another process that wants the same waits. A whole one is read from a folder that cannot be written too. Raises
    OSError, in one line that names the folder, where it cannot be written.
    """
    place = home() / key
    if (found := Entry(place)).whole():
        return found
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place.with_name(f".{key}.lock"), wait=True):
            if not (found := Entry(place)).whole():
                _make(place, make)
                found = Entry(place)
                if not found.whole():
                    raise OSError(5, "what was written cannot be read back")
            return found
    except _Unmade as error:
        raise error.__cause__ from None  # type: ignore[misc]  # what the data itself is refused for
    except OSError as error:
        raise OSError(
            f"cannot keep tokens in {place.parent}: {error.strerror or error}; make room there, or set KINFORMER_CACHE "
            "to a folder with room"
        ) from error


class _Unmade(Exception):
    """What making an entry raised that is not about the disk that it is written to."""


def _make(place: Path, make: Callable[[Entry], None]) -> None:
    beside = place.with_name(f".{place.name}.partial")
    for left in (beside, place):
        shutil.rmtree(left, ignore_errors=True)
    beside.mkdir()
    entry = Entry(beside)
    try:
        make(entry)
        entry.close()
        os.replace(beside, place)
    except OSError as error:
        entry.drop()
        if error.errno is None:  # a line of our own about a file of data
            raise _Unmade from error
        raise
    except BaseException as error:
        entry.drop()
        if isinstance(error, Exception):
            raise _Unmade from error
        raise


def _crc(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found = zlib.crc32(chunk, found)
    return found


def _mapped(path: Path, dtype: str) -> Tensor:
    if not path.stat().st_size:
        return torch.from_numpy(numpy.empty(0, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot be written to: nobody writes to data
        return torch.from_numpy(numpy.memmap(path, dtype=dtype, mode="r"))
