"""Splits: assign the documents of a text source to training, validation and test."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from kinformer.checkpoint.atomic_files import digest
from kinformer.lab.data.support.text_sources import FEW, SourceDocument, TextSource

VALID, TEST = 0.05, 0.05  # shares of the data for validation, and for the test at the very end

NAMES = ("train", "valid", "test")


class Piece(NamedTuple):
    """A piece of a document, with the split that it belongs to.

    place: name of its document, for errors.
    split: name of the split.
    first: True if this is the first piece of its document in its split.
    chunk: the bytes of the piece.
    """

    place: str
    split: str
    first: bool
    chunk: bytes


class Split(NamedTuple):
    """A text source and the rule that splits it in three.

    source: the text source.
    by: the rule in words.
    """

    source: TextSource
    by: str

    def pieces(self) -> Iterator[Piece]:
        """Yield all bytes of the source, document by document, each piece with its split."""
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
    """Choose the rule that splits a source into training, validation and test, about 90 : 5 : 5.

    A data set's own splits are kept. At least 100 files are split by the SHA-256 of each relative name. At least 100
    documents, which are rows or parts of a file, are split by the SHA-256 of each document. A file or document then
    keeps its split when others are added. Fewer documents are each cut at two places, so all of them are in every
    split.
    """
    own_splits = [document.split for document in islice(source.documents(), FEW)]
    if any(own_splits):
        return Split(source, OWN)
    if len(own_splits) < FEW:
        return Split(source, CUT)
    return Split(source, BY_NAME if len(source.files) >= FEW else BY_CONTENT)


def split_of(key: bytes) -> str:
    """Return "train", "valid" or "test" for a file or document, by the SHA-256 of its key."""
    place = int.from_bytes(digest(key)[:8]) / 2**64
    return "train" if place < 1 - VALID - TEST else "valid" if place < 1 - TEST else "test"


def _cut(document: SourceDocument) -> Iterator[Piece]:
    """Cut a document in three at the first whole character after 90% and after 95%."""
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
