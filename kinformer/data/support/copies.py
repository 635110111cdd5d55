"""Copies: texts or images of validation and test data that also stand in an earlier split."""

import hashlib
import warnings
from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy

SIZE = 8  # bytes of a hash: 8 for each document, however many there are


class Copies(NamedTuple):
    """How many documents of valid and test are also in an earlier split, of how many in the two."""

    copied: int = 0
    total: int = 0

    def line(self, what: str) -> str:
        """The number of copies, in words; "" if there are none."""
        if not self.copied:
            return ""
        return f"{self.copied:,} of {self.total:,} {what} in valid and test are copies of {what} in an earlier split"

    def warn(self, name: str, what: str) -> None:
        """Warn, in one line, if there are any."""
        if self.copied:
            warnings.warn(f"{name}: {self.line(what)}; scores on them are too good, leave them out", stacklevel=4)


def copies(splits: Mapping[str, Iterable[bytes]]) -> Copies:
    """The copies among texts in train, valid and test."""
    return copies_of({name: array("Q", map(short_hash, texts)) for name, texts in splits.items()})


def copies_of(hashes: Mapping[str, array]) -> Copies:
    """The copies among texts in train, valid and test, each given by its hash."""
    train, valid, test = (numpy.array(hashes.get(name, ()), numpy.uint64) for name in ("train", "valid", "test"))
    found = numpy.isin(valid, train).sum() + numpy.isin(test, numpy.concatenate([train, valid])).sum()
    return Copies(int(found), len(valid) + len(test))


def short_hash(data: bytes) -> int:
    """A hash of 64 bits."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=SIZE).digest())


class DocumentHashes:
    """The hashes of documents by split, from the pieces of one document after the other."""

    def __init__(self) -> None:
        self.by_split = {name: array("Q") for name in ("train", "valid", "test")}
        self._split, self._hash, self._is_blank = "train", hashlib.blake2b(digest_size=SIZE), True

    def add(self, split: str, is_first: bool, chunk: bytes) -> None:
        """The next bytes, which begin a document if `is_first`."""
        if is_first:
            self.close()
            self._split = split
        self._hash.update(chunk)
        self._is_blank = self._is_blank and not chunk.strip()

    def close(self) -> None:
        """End the document; blank ones are not counted."""
        if not self._is_blank:
            self.by_split[self._split].append(int.from_bytes(self._hash.digest()))
        self._hash, self._is_blank = hashlib.blake2b(digest_size=SIZE), True
