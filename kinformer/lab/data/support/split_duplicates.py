"""Copies: texts or images in validation and test data that also occur in an earlier split."""

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy

from kinformer.core.warn import warn

SIZE = 8  # bytes of a hash: 8 for each document, however many there are


class CopyCount(NamedTuple):
    """Count of the documents or images in valid and test that also occur in an earlier split.

    copied: number of copies.
    total: number of all documents or images in valid and test.
    """

    copied: int = 0
    total: int = 0

    def line(self, items: str) -> str:
        """Return a sentence with the number of copies of `items`, such as "images"; "" if there are none."""
        if not self.copied:
            return ""
        return f"{self.copied:,} of {self.total:,} {items} in valid and test are copies of {items} in an earlier split"

    def warn(self, name: str, items: str) -> None:
        """Warn, in one line, if there are copies of `items` in the data `name`."""
        if self.copied:
            warn(f"{name}: {self.line(items)}. Scores on copies are too good. Remove the copies")


def count_copies(splits: Mapping[str, Iterable[bytes]]) -> CopyCount:
    """Count the texts in valid and test that also occur in an earlier split.

    splits: the texts of train, valid and test.
    """
    return copies_of({name: array("Q", map(short_hash, texts)) for name, texts in splits.items()})


def copies_of(hashes: Mapping[str, array]) -> CopyCount:
    """Count the texts in valid and test that also occur in an earlier split, by their hashes.

    hashes: the hash of each text in train, valid and test.
    """
    train, valid, test = (numpy.array(hashes.get(name, ()), numpy.uint64) for name in ("train", "valid", "test"))
    copied = numpy.isin(valid, train).sum() + numpy.isin(test, numpy.concatenate([train, valid])).sum()
    return CopyCount(int(copied), len(valid) + len(test))


def short_hash(data: bytes) -> int:
    """Return a hash of `data` with 64 bits."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=SIZE).digest())


class DocumentHashes:
    """Hashes of the documents of each split, which are added chunk by chunk."""

    def __init__(self) -> None:
        self.by_split = {name: array("Q") for name in ("train", "valid", "test")}
        self._split, self._hash, self._is_blank = "train", hashlib.blake2b(digest_size=SIZE), True

    def add(self, split: str, is_first: bool, chunk: bytes) -> None:
        """Add the next bytes of a split's document; `is_first` starts a new document."""
        if is_first:
            self.close()
            self._split = split
        self._hash.update(chunk)
        self._is_blank = self._is_blank and not chunk.strip()

    def close(self) -> None:
        """End the document and store its hash, unless it is blank."""
        if not self._is_blank:
            self.by_split[self._split].append(int.from_bytes(self._hash.digest()))
        self._hash, self._is_blank = hashlib.blake2b(digest_size=SIZE), True
