"""Fingerprint: a hash of all numbers and bytes of data, so that a resumed training knows its data."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

PREFIX = "sha256:"  # fingerprints of an earlier version have no prefix; they hash only a sample of the data
CHUNK = 1 << 26  # bytes that are hashed at a time, so that Ctrl-C is answered


def fingerprint_of(*values: Any) -> str:
    """Return the SHA-256 of nested values: tensors, arrays, sequences, mappings and dataclasses.

    Every byte counts; 1 GB takes about a second.
    """
    sha = hashlib.sha256()
    for value in values:
        for piece in _pieces(value):
            sha.update(piece)
    return PREFIX + sha.hexdigest()


def hashed_name(value: Any) -> str:
    """Return the name of the class of `value` in fingerprints: its `hashed_as`, or its own name.

    `hashed_as` is the name that the class had in earlier versions, so the fingerprints of saved runs stay valid.
    """
    return getattr(value, "hashed_as", type(value).__name__)


def _pieces(value: Any) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a value; a header before each part gives its type and size."""
    if isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        yield f"array {value.dtype} {value.shape};".encode()
        yield from _chunks(value)
    elif isinstance(value, Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)};".encode()
        numbers = value.detach().cpu()
        yield from _chunks((numbers.float() if numbers.dtype == torch.bfloat16 else numbers).numpy())
    elif isinstance(value, bytes):
        yield f"bytes {len(value)};".encode()
        yield value
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)};".encode()
        for key in sorted(value, key=repr):
            yield from (*_pieces(key), *_pieces(value[key]))
    elif isinstance(value, list | tuple) and not all(isinstance(part, int) for part in value):
        yield f"sequence {len(value)};".encode()
        for part in value:
            yield from _pieces(part)
    elif is_dataclass(value) and not isinstance(value, type):
        yield f"{hashed_name(value)};".encode()
        for field in fields(value):
            yield from _pieces(getattr(value, field.name))
    else:
        text = repr(value).encode()
        yield f"value {len(text)};".encode() + text


def _chunks(array: numpy.ndarray) -> Iterator[memoryview]:
    data = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
    yield from (data[first : first + CHUNK].data for first in range(0, len(data), CHUNK))
