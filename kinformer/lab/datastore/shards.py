"""Shards: the files of a datastore, each safetensors, whose numbers are read where they lie on the disk."""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
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
LONGEST = 1 << 20  # bytes of a header
TOKENS = 1 << 20  # of a text that are looked at together


class DatastoreError(ValueError):
    """A folder that holds no whole datastore, or one of another model; the message says what is wrong, in one line."""


class Shards(Vectors):
    """The keys of all shards, one after the other, as they lie on the disk: no more is in memory than what is asked."""

    def __init__(self, maps: Sequence[numpy.ndarray], width: int):
        self.parts = [from_dlpack(numpy.asarray(one)) for one in maps if len(one)]
        self.ends = list(accumulate((len(one) for one in self.parts), initial=0))
        self.count, self.width = self.ends[-1], width

    def blocks(self, size: int = BLOCK) -> Iterator[VectorBlock]:
        for first, shard in zip(self.ends, self.parts, strict=False):
            yield from zip(range(first, first + len(shard), size), shard.split(size), strict=True)

    def at(self, places: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        wanted = places.numpy()
        low, high = (int(wanted.min()), int(wanted.max())) if len(wanted) else (0, 0)
        if not 0 <= low <= high < max(self.count, 1):
            raise ValueError(f"places {low} to {high} came; give 0 to {self.count - 1}")
        if not self.parts:
            return torch.empty(0, self.width, dtype=torch.float32, device="cpu")
        part = bisect_right(self.ends, low) - 1
        if part < len(self.parts) and high < self.ends[part + 1]:
            return self.parts[part].index_select(0, places - self.ends[part])
        if bool((wanted[1:] < wanted[:-1]).any()):
            order = places.argsort(stable=True)
            found = self.at(places[order])
            return torch.empty_like(found).index_copy_(0, order, found)
        ends = numpy.searchsorted(wanted, self.ends)
        return torch.cat(
            [
                one.index_select(0, places[a:b] - first)
                for first, one, (a, b) in zip(self.ends, self.parts, pairwise(ends), strict=False)
            ]
        )


def digest(tokens: numpy.ndarray, begins: numpy.ndarray) -> str:
    """The SHA-256 of a text: of where its documents begin, and of its tokens."""
    found = hashlib.sha256(begins.astype(numpy.int64).tobytes())
    for at in range(0, len(tokens), TOKENS):
        found.update(tokens[at : at + TOKENS].astype(numpy.int32).tobytes())
    return found.hexdigest()


def mapped(path: Path, wanted: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, numpy.ndarray]:
    """Tensors of a safetensors file where they lie on the disk, of the dtypes and shapes that are wanted.

    DatastoreError where the file is missing, truncated, or holds others.
    """
    size, header = _header(path)
    found, last = {}, 0
    for name, (dtype, shape) in wanted.items():
        code, kind = DTYPES[dtype]
        told = header.get(name)
        first = _begin(told)
        end = first + math.prod(shape) * numpy.dtype(kind).itemsize
        if told != {"dtype": code, "shape": list(shape), "data_offsets": [first, end]}:
            raise DatastoreError(f"{path} holds no {name} of shape {list(shape)} in {dtype}; build the datastore again")
        found[name], last = (kind, 8 + size + first, shape), max(last, end)
    there = path.stat().st_size
    if there != 8 + size + last:
        what = "truncated" if there < 8 + size + last else "damaged"
        raise DatastoreError(
            f"{path} is {what}: it has {there:,} bytes and must have {8 + size + last:,}; build the datastore again"
        )
    return {name: numpy.memmap(path, kind, "r", first, shape) for name, (kind, first, shape) in found.items()}


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """How long the header of a file is, and what it says of the tensors; nothing where it is none."""
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


def _begin(told: Any) -> int:
    """Where a header says that a tensor begins; 0 where it says no such thing."""
    ends = told.get("data_offsets") if isinstance(told, dict) else None
    return ends[0] if isinstance(ends, list) and len(ends) == 2 and type(ends[0]) is int and ends[0] >= 0 else 0
