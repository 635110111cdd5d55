"""Long lines: however long a piece of a text is, each of its bytes is copied a few times and no more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from kinformer.checkpoint import decompress as unpacked
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from kinformer.lab.data.support import tokenized_data as tokens
from kinformer.lab.data.support.text_sources import TextSource
from kinformer.lab.data.support.tokenized_data import MemoryArrays, _Words
from kinformer.lab.data.support.train_valid_test import Piece

SIZE, CHUNK, MOST = 1 << 20, 1 << 10, 8


class Counted(bytes):
    """Bytes that count how many are copied where they are put together or cut."""

    copied = 0

    def _new(self, data: bytes) -> "Counted":
        Counted.copied += len(data)
        return Counted(data)

    def __add__(self, other: Any) -> "Counted":
        return self._new(bytes(self) + bytes(other))

    def __radd__(self, other: Any) -> Any:
        if isinstance(other, bytearray):  # which grows in place
            return NotImplemented
        return self._new(bytes(other) + bytes(self))

    def __getitem__(self, at: Any) -> Any:
        return self._new(bytes(self)[at]) if isinstance(at, slice) else bytes(self)[at]

    def split(self, *arguments: Any) -> list[Any]:
        return [self._new(piece) for piece in bytes(self).split(*arguments)]


def chunks(data: bytes) -> Iterator[Counted]:
    return (Counted(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A text of a short line, an empty one, a very long one, and a last one without an end."""
    whole = b"short\n\n" + b"long " * (SIZE // 5) + b"\r\nlast"
    Counted.copied = 0
    monkeypatch.setattr(unpacked, "chunks", lambda path: chunks(whole))
    return whole


def test_lines_of_any_length_are_read_in_linear_time(data: bytes) -> None:
    assert list(unpacked.lines(Path("any"))) == data.replace(b"\r", b"").split(b"\n")
    assert Counted.copied < MOST * len(data)


@pytest.mark.parametrize("between", ["lines", "blank", "last", "ng lo", "\nlong long long"])
def test_documents_of_any_length_are_read_in_linear_time(data: bytes, between: str) -> None:
    parts = [
        b"".join(document.chunks())
        for document in TextSource("any", (("any", Path("any")),), between=between).documents()
    ]
    at = {"lines": b"\n", "blank": b"\n\n"}.get(between, between.encode())
    expected = [piece.strip() for piece in data.split(at) if piece.strip()]
    assert [piece.strip() for piece in parts] == expected
    assert Counted.copied < MOST * len(data)


@pytest.mark.parametrize("at", [b"\n", b"aa", b"aba", b"abcab"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pieces_are_those_of_the_whole_however_it_is_cut(at: bytes, size: int) -> None:
    letters = numpy.random.default_rng(0).choice([b"a", b"b", b"c", b"\n"], 400)
    whole = b"".join(letters.tolist())
    cut = (whole[first : first + size] for first in range(0, len(whole), size))
    assert list(unpacked.split_stream(cut, at)) == whole.split(at)


def test_a_document_of_any_length_becomes_tokens_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of a data set comes as one piece, which is encoded a part after the other."""
    monkeypatch.setattr(tokens, "ENCODED", CHUNK)
    Counted.copied = 0
    writer, texts = _Words(MemoryArrays(), train_tokenizer(["word"], 260)), b"word " * (SIZE // 5)
    writer.add(Piece("any", "train", True, Counted(texts)))
    writer.close()
    assert writer.count["train"] == 2 * (SIZE // 5) and Counted.copied < MOST * len(texts)
