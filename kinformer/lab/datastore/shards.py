"""Shards: the files with the keys of a datastore, mapped into memory and read from disk on demand."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from kinformer.core.from_json import from_json
from kinformer.core.search import BLOCK, VectorBlock, Vectors

DTYPES: dict[str, tuple[str, Any]] = {
    "float16": ("F16", numpy.float16),
    "float32": ("F32", numpy.float32),
    "int32": ("I32", numpy.int32),
    "int64": ("I64", numpy.int64),
}
LONGEST = 1 << 20  # most bytes of a header
TOKENS = 1 << 20  # tokens of a text that are hashed at a time


class DatastoreError(ValueError):
    """Error for a folder without a complete datastore, or with the datastore of another model; one line."""


class Shards(Vectors):
    """The keys of a datastore in order, mapped from its files: only the requested keys are in memory.

    maps: the mapped keys of each file (shard).
    width: number of coordinates of a key.
    """

    def __init__(self, maps: Sequence[numpy.ndarray], width: int):
        self.parts = [from_dlpack(numpy.asarray(rows)) for rows in maps if len(rows)]
        self.ends = list(accumulate((len(rows) for rows in self.parts), initial=0))
        self.count, self.width = self.ends[-1], width

    def blocks(self, size: int = BLOCK) -> Iterator[VectorBlock]:
        for first, shard in zip(self.ends, self.parts, strict=False):
            yield from zip(range(first, first + len(shard), size), shard.split(size), strict=True)

    def at(self, places: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        low, high = (int(x) for x in places.aminmax()) if len(places) else (0, 0)
        if not 0 <= low <= high < max(self.count, 1):
            raise ValueError(f"keys cannot be read: got the numbers {low} to {high}, expected 0 to {self.count - 1}")
        if not self.parts:
            return torch.empty(0, self.width, dtype=torch.float32, device="cpu")
        rows = torch.empty(len(places), self.width, dtype=self.parts[0].dtype, device="cpu")
        shards = torch.from_numpy(numpy.searchsorted(self.ends, places.numpy(), side="right") - 1)
        for shard in shards.unique().tolist():
            at = (shards == shard).nonzero()[:, 0]
            rows[at] = self.parts[shard].index_select(0, places[at] - self.ends[shard])
        return rows


def digest(tokens: numpy.ndarray, begins: numpy.ndarray) -> str:
    """Return the SHA-256 of a text with documents.

    tokens: the tokens.
    begins: index of the first token of each document.
    """
    sha256 = hashlib.sha256(begins.astype(numpy.int64).tobytes())
    for at in range(0, len(tokens), TOKENS):
        sha256.update(tokens[at : at + TOKENS].astype(numpy.int32).tobytes())
    return sha256.hexdigest()


def map_tensors(path: Path, expected: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, numpy.ndarray]:
    """Map the tensors of a safetensors file into memory, after a check of their dtypes and shapes.

    path: the file.
    expected: dtype and shape of each tensor, by name.

    Errors: DatastoreError if the file is missing or truncated, or holds other tensors.
    """
    size, header = _header(path)
    maps, last = {}, 0
    for name, (dtype, shape) in expected.items():
        code, kind = DTYPES[dtype]
        entry = header.get(name)
        first = _begin(entry)
        end = first + math.prod(shape) * numpy.dtype(kind).itemsize
        if entry != {"dtype": code, "shape": list(shape), "data_offsets": [first, end]}:
            raise DatastoreError(
                f"{path} has no tensor {name} of shape {list(shape)} in {dtype}; build the datastore again"
            )
        maps[name], last = (kind, 8 + size + first, shape), max(last, end)
    length = path.stat().st_size
    if length != 8 + size + last:
        state = "truncated" if length < 8 + size + last else "damaged"
        raise DatastoreError(
            f"{path} is {state}: got {length:,} bytes, expected {8 + size + last:,}; build the datastore again"
        )
    return {name: numpy.memmap(path, kind, "r", first, shape) for name, (kind, first, shape) in maps.items()}


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the length of a file's header, and its entry for each tensor; no entries if the header is invalid."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = from_json(file.read(size)) if 0 < size <= LONGEST else {}
    except FileNotFoundError as error:
        raise DatastoreError(f"{path} is missing; build the datastore again") from error
    except OSError as error:
        raise DatastoreError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        header = {}
    return size, header if isinstance(header, dict) else {}


def _begin(entry: Any) -> int:
    """Return the offset of a tensor by its entry in the header; 0 if the entry is invalid."""
    ends = entry.get("data_offsets") if isinstance(entry, dict) else None
    return ends[0] if isinstance(ends, list) and len(ends) == 2 and type(ends[0]) is int and ends[0] >= 0 else 0
