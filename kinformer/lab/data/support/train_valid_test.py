"""Splits: which part of a source is learned from, watched, and kept for the end."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from kinformer.checkpoint.atomic_files import digest
from kinformer.lab.data.support.text_sources import FEW, SourceDocument, TextSource

VALID, TEST = 0.05, 0.05  # shares of the data for validation, and for the test at the very end

NAMES = ("train", "valid", "test")


class Piece(NamedTuple):
    """Some bytes of a split, where they are from, and whether a document begins with them."""

    place: str
    split: str
    first: bool
    chunk: bytes


class Split(NamedTuple):
    """A source and the rule by which it is split, in words."""

    source: TextSource
    by: str

    def pieces(self) -> Iterator[Piece]:
        """All bytes of the source, each document's in one piece after another."""
        for document in self.source.documents():
            if self.by == CUT:
                yield from _cut(document)
            else:
                split = self._split_name(document)
                for number, chunk in enumerate(document.chunks()):
                    yield Piece(document.place, split, not number, chunk)

    def _split_name(self, document: SourceDocument) -> str:
        if self.by in NAMES:
            return self.by
        return document.split or split_of(document.key)


CUT = "each document cut at 90% and 95%"
BY_NAME, BY_CONTENT = "by the SHA-256 of each file's name", "by the SHA-256 of each document"
OWN = "as the data set itself is split"


def split(source: TextSource) -> Split:
    """How a source is split, about 90 : 5 : 5.

    A data set's own splits are kept. A hundred files or documents and more are split by the SHA-256 of a file's
    relative name, or of a document that is a row or a part of a file, so that each keeps its split whatever stands
    beside it. Of fewer each is cut at two places, so that all of them are in every split.
    """
    own_splits = [document.split for document in islice(source.documents(), FEW)]
    if any(own_splits):
        return Split(source, OWN)
    if len(own_splits) < FEW:
        return Split(source, CUT)
    return Split(source, BY_NAME if len(source.files) >= FEW else BY_CONTENT)


def split_of(key: bytes) -> str:
    """The split of a file or document: train, valid or test, by the SHA-256 of its name or of itself."""
    place = int.from_bytes(digest(key)[:8]) / 2**64
    return "train" if place < 1 - VALID - TEST else "valid" if place < 1 - TEST else "test"


def _cut(document: SourceDocument) -> Iterator[Piece]:
    """A document in three, cut at the first whole character from 90% and from 95% on."""
    size = document.size()
    ends = iter((round(size * (1 - VALID - TEST)), round(size * (1 - TEST)), float("inf")))
    names, at, end, name, first = iter(NAMES[1:]), 0, next(ends), "train", True
    for chunk in document.chunks():
        begin = 0
        while at + len(chunk) > end:
            last = max(int(end) - at, begin)
            while last < len(chunk) and chunk[last] & 0xC0 == 0x80 and at + last < end + 4:
                last += 1
            if last == len(chunk):
                break
            if last > begin:
                yield Piece(document.place, name, first, chunk[begin:last])
            begin, end, name, first = last, next(ends), next(names), True
        if begin < len(chunk):
            yield Piece(document.place, name, first, chunk[begin:])
            first = False
        at += len(chunk)
