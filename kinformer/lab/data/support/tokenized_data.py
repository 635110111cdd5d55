"""Tokens of a text source: bytes of small plain files are kept in memory, other tokens on disk.

Large data is never in memory at once.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from kinformer.checkpoint.lost_bytes import LostBytes
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from kinformer.decoding.byte_tokenizer import last_break
from kinformer.lab.data.support.array_cache import ArraySink, CacheEntry, cached_entry
from kinformer.lab.data.support.encode_rows import decode_utf8
from kinformer.lab.data.support.split_duplicates import CopyCount, DocumentHashes, copies_of
from kinformer.lab.data.support.train_valid_test import CUT, NAMES, Piece, Split

EDITION = 2  # version of the tokenization of a source
HELD = 1 << 26  # maximum bytes of plain files that are read into memory
ENCODED = 1 << 20  # bytes that are tokenized at a time
SAMPLE = 1 << 26  # maximum bytes for training a tokenizer


class TokenizedData(NamedTuple):
    """Tokens of all splits, with the starts of documents and the bytes of each token.

    arrays: by name, the tokens, the starts of documents and the number of bytes of each token.
    counts: number of bytes of each split.
    tokenizer: the tokenizer; None if the tokens are bytes.
    loss: bytes of the data that the tokenizer cannot reproduce.
    copies: count of documents that occur in several splits.
    """

    arrays: dict[str, Tensor]
    counts: dict[str, int]
    tokenizer: Tokenizer | None
    loss: LostBytes = LostBytes()
    copies: CopyCount = CopyCount()


class MemoryArrays(ArraySink):
    """Named arrays that are written part by part and kept in memory."""

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}
        self._parts: dict[str, list[numpy.ndarray]] = {}

    def append(self, name: str, values: numpy.ndarray) -> None:
        self._parts.setdefault(name, []).append(values)

    @property
    def arrays(self) -> dict[str, Tensor]:
        """All arrays by name."""
        return {name: torch.from_numpy(numpy.concatenate(parts)) for name, parts in self._parts.items()}


def tokens_of(splits: Sequence[Split], spelled: str, tokenizer: Tokenizer | int | None) -> TokenizedData:
    """Tokenize all splits: as bytes, with a tokenizer, or with one that is trained on train.

    splits: the sources with the rules that split them.
    spelled: the option `tokenizer=` as it was written; it is part of the cache key.
    tokenizer: a tokenizer, the size of one to train, or None for bytes.
    """
    sizes = [split.source.bytes_held for split in splits]
    if tokenizer is None and all(size is not None for size in sizes) and sum(size or 0 for size in sizes) <= HELD:
        memory = MemoryArrays()
        _make(splits, None, memory)
        return TokenizedData(memory.arrays, memory.notes["counts"], None, copies=memory.notes["copies"])
    by = tokenizer.sha256 if isinstance(tokenizer, Tokenizer) else spelled
    parts = [EDITION, by, *((split.by, split.source.digest().hex()) for split in splits)]
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:40]

    def make(entry: CacheEntry) -> None:
        learned = train_tokenizer(_sample(splits), tokenizer) if isinstance(tokenizer, int) else tokenizer
        if learned is not None:
            entry.notes["tokenizer"] = learned.text
        _make(splits, learned, entry)

    entry = cached_entry(f"tokens-{key}", make)
    used_tokenizer = Tokenizer(entry.notes["tokenizer"]) if isinstance(tokenizer, int) else tokenizer
    loss, copies = LostBytes(*entry.notes.get("loss", ())), CopyCount(*entry.notes.get("copies", ()))
    return TokenizedData(entry.arrays, entry.notes["counts"], used_tokenizer, loss, copies)


def _pieces(splits: Sequence[Split]) -> Iterator[Piece]:
    return (piece for split in splits for piece in split.pieces())


def _sample(splits: Sequence[Split]) -> Iterator[str]:
    """Yield the text to train a tokenizer on: train, or parts from everywhere in it if it is large."""
    total = sum(len(piece.chunk) for piece in _pieces(splits) if piece.split == "train")
    every, at = max(1, -(-total // SAMPLE)), 0
    for piece in _pieces(splits):
        if piece.split == "train":
            if at // ENCODED % every == 0:
                yield piece.chunk.decode(errors="ignore")
            at += len(piece.chunk)


def _make(splits: Sequence[Split], tokenizer: Tokenizer | None, to: ArraySink) -> None:
    """Append all arrays of the splits to a sink."""
    writer = _Bytes(to) if tokenizer is None else _Words(to, tokenizer)
    for name in NAMES:
        writer.append(name, numpy.empty(0, numpy.int64))
    hashes = DocumentHashes()
    for split in splits:
        for piece in split.pieces():
            writer.add(piece)
            if split.by != CUT:  # equal documents are cut at the same places, so their splits share no text
                hashes.add(piece.split, piece.first, piece.chunk)
    hashes.close()
    writer.close()
    to.notes["copies"] = copies_of(hashes.by_split)
    to.notes["counts"] = {name: writer.bytes[name] for name in NAMES}
    if isinstance(writer, _Words):
        to.notes["loss"] = writer.loss


class _Bytes:
    """Writer of bytes as tokens."""

    dtype: type = numpy.uint8

    def __init__(self, to: ArraySink) -> None:
        self.to = to
        self.bytes, self.count, self.begins = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0), _lists()

    def add(self, piece: Piece) -> None:
        """Add the next bytes of the source."""
        self.bytes[piece.split] += len(piece.chunk)
        if piece.first:
            self.begin(piece.split)
        self.append(piece.split, numpy.frombuffer(piece.chunk, numpy.uint8))

    def begin(self, split: str) -> None:
        """Begin a document."""
        self.begins[split].append(self.count[split])
        if len(self.begins[split]) >= ENCODED // 8:
            self._flush(split)

    def append(self, split: str, tokens: numpy.ndarray) -> None:
        """Append tokens to a split."""
        self.count[split] += len(tokens)
        self.to.append(split, tokens.astype(self.dtype, copy=False))

    def close(self) -> None:
        """Write everything that is still buffered."""
        for split in NAMES:
            self._flush(split)

    def _flush(self, split: str) -> None:
        self.to.append(f"{split}.begins", numpy.array(self.begins[split], numpy.int64))
        self.begins[split] = []


class _Words(_Bytes):
    """Writer of tokens and their widths in bytes, which tokenizes pieces that end between words."""

    def __init__(self, to: ArraySink, tokenizer: Tokenizer) -> None:
        super().__init__(to)
        self.tokenizer, size = tokenizer, tokenizer.size
        self.dtype = numpy.uint8 if size <= 1 << 8 else numpy.uint16 if size <= 1 << 16 else numpy.int32
        narrow = tokenizer.max_token_bytes is not None and tokenizer.max_token_bytes <= numpy.iinfo(numpy.int8).max
        self.width: type = numpy.int8 if narrow else numpy.int32
        self.rest, self.split, self.first, self.place = b"", "train", False, ""
        self.texts: list[tuple[str, bool, str, str]] = []
        self.waiting, self.loss = 0, LostBytes()
        for split in NAMES:
            to.append(f"{split}.widths", numpy.empty(0, self.width))

    def add(self, piece: Piece) -> None:
        self.bytes[piece.split] += len(piece.chunk)
        if piece.first:
            self._hand_on(self.rest)
            self.rest, self.split, self.first, self.place = b"", piece.split, True, piece.place
        data, begin = self.rest + piece.chunk, 0
        while len(data) - begin > ENCODED:
            end = begin + last_break(data[begin : begin + ENCODED])
            self._hand_on(data[begin:end])
            begin = end
        self.rest = data[begin:]

    def close(self) -> None:
        self._hand_on(self.rest)
        self._encode()
        super().close()

    def _hand_on(self, data: bytes) -> None:
        """Queue the next part of a document for the tokenizer."""
        if data:
            self.texts.append((self.split, self.first, self.place, decode_utf8(data, self.place)))
            self.first = False
            self.waiting += len(data)
            if self.waiting >= ENCODED:
                self._encode()

    def _encode(self) -> None:
        every = self.tokenizer.encode_batch([text for *_, text in self.texts])
        for (split, first, place, _), (tokens, widths, loss) in zip(self.texts, every, strict=True):
            if first:
                self.begin(split)
            self.append(split, tokens)
            if widths.max(initial=0) > numpy.iinfo(self.width).max:
                raise ValueError(
                    f"{place}: a token decodes to {widths.max():,} bytes, which is too long; use another tokenizer"
                )
            self.to.append(f"{split}.widths", widths.astype(self.width))
            self.loss = self.loss.plus(loss._replace(place=place))
        self.texts, self.waiting = [], 0


def _lists() -> dict[str, list[int]]:
    return {name: [] for name in NAMES}
