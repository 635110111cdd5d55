"""Cache of arrays on disk: each entry is made once for its key, and made again if it is damaged."""

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

from kinformer.checkpoint.lock import file_lock
from kinformer.core.from_json import from_json

EDITION = 1  # version of the format of an entry
CHUNK = 1 << 24


def home() -> Path:
    """Return the cache folder: $KINFORMER_CACHE, or kinformer in $XDG_CACHE_HOME, by default ~/.cache."""
    if folder := os.environ.get("KINFORMER_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kinformer"


class ArraySink(ABC):
    """Base class of a destination for named arrays, which are written part by part.

    A subclass supplies `append`. `notes` holds facts about the arrays, by name.
    """

    notes: dict[str, Any]

    @abstractmethod
    def append(self, name: str, values: numpy.ndarray) -> None:
        """Append values to a named array; all parts of an array have one dtype."""


class CacheEntry(ArraySink):
    """An entry of the cache: a folder with a file for each array, which is written once and then read.

    `append` extends an array. `arrays` maps all arrays into memory. `notes` is a dictionary that is stored with them.

    folder: the folder of the entry.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: dict[str, Any] = {}
        self._files: dict[str, Any] = {}
        self._kept: dict[str, dict[str, Any]] = {}

    def append(self, name: str, values: numpy.ndarray) -> None:
        if name not in self._files:
            self._files[name] = (self.folder / f"{name}.bin").open("wb")
            self._kept[name] = {"dtype": values.dtype.name, "bytes": 0, "crc32": 0}
        data, about = values.tobytes(), self._kept[name]
        self._files[name].write(data)
        about["bytes"] += len(data)
        about["crc32"] = zlib.crc32(data, about["crc32"])

    def close(self) -> None:
        """Write everything to the disk, the list of the arrays and their checksums last."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        index = {"edition": EDITION, "arrays": self._kept, "said": self.notes}
        with (self.folder / "entry.json").open("w") as file:
            json.dump(index, file)
            file.flush()
            os.fsync(file.fileno())

    def drop(self) -> None:
        """Delete the entry."""
        for file in self._files.values():
            file.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_intact(self) -> bool:
        """Return whether the entry is exactly as it was written, by its checksums."""
        try:
            index = from_json((self.folder / "entry.json").read_text())
            self.notes, self._kept = index["said"], index["arrays"]
            same = [_crc(self.folder / f"{name}.bin") == about["crc32"] for name, about in self._kept.items()]
            return index["edition"] == EDITION and all(same)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    @property
    def arrays(self) -> dict[str, Tensor]:
        """All arrays, memory-mapped, so that the system may drop their pages from memory."""
        return {name: _map_tensor(self.folder / f"{name}.bin", about["dtype"]) for name, about in self._kept.items()}


def cached_entry(key: str, make: Callable[[CacheEntry], None]) -> CacheEntry:
    """Return the entry of a key; make it if it is missing or damaged.

    An entry is written to a temporary folder and renamed in one step, so an interruption never leaves a partial entry
    under the key. Other processes that need the same entry wait. An intact entry can be read from a read-only folder.

    key: name of the entry.
    make: a function that writes the arrays and notes.

    Errors: OSError, in one line that names the folder, if the entry cannot be written; every error of `make`.
    """
    place = home() / key
    if (entry := CacheEntry(place)).is_intact():
        return entry
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(place.with_name(f".{key}.lock"), wait=True):
            if not (entry := CacheEntry(place)).is_intact():
                _make(place, make)
                entry = CacheEntry(place)
                if not entry.is_intact():
                    raise OSError(5, "the written data cannot be read back")
            return entry
    except _Unmade as error:
        raise error.__cause__ from None  # type: ignore[misc]  # the error of the data itself
    except OSError as error:
        raise OSError(
            f"cannot write the token cache in {place.parent}: {error.strerror or error}; free disk space there, or set "
            "KINFORMER_CACHE to another folder"
        ) from error


class _Unmade(Exception):
    """An error of `make` that does not concern the disk of the cache."""


def _make(place: Path, make: Callable[[CacheEntry], None]) -> None:
    """Make an entry in a temporary folder and rename it."""
    partial = place.with_name(f".{place.name}.partial")
    for left in (partial, place):
        shutil.rmtree(left, ignore_errors=True)
    partial.mkdir()
    entry = CacheEntry(partial)
    try:
        make(entry)
        entry.close()
        os.replace(partial, place)
    except OSError as error:
        entry.drop()
        if error.errno is None:  # an error of this library about a data file
            raise _Unmade from error
        raise
    except BaseException as error:
        entry.drop()
        if isinstance(error, Exception):
            raise _Unmade from error
        raise


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc


def _map_tensor(path: Path, dtype: str) -> Tensor:
    if not path.stat().st_size:
        return torch.from_numpy(numpy.empty(0, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of read-only arrays; the data is never written
        return torch.from_numpy(numpy.memmap(path, dtype=dtype, mode="r"))
