"""Reading of compressed files, which are recognised by their first bytes, not by their names.

Open text with `text`, `lines` or `decode_text`, so that byte-order marks are handled the same everywhere.
"""

import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import zstandard

CHUNK = 1 << 20
GZ, XZ, ZST = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
MARKS = {  # UTF-32 comes first, because its mark begins with the mark of UTF-16
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
LONGEST_MARK = max(map(len, MARKS))
BROKEN = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile)


def is_packed(path: Path) -> bool:
    """Return True if the first bytes of a file show that it is compressed.

    path: file to read.
    """
    with _one_line_errors(path), path.open("rb") as file:
        return file.read(6).startswith((GZ, XZ, ZST))


def chunks(path: Path) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file, a megabyte at a time.

    path: file to read.

    Errors: OSError for an unreadable file and ValueError for a truncated or damaged one, in one line with its name.
    """
    with _one_line_errors(path), path.open("rb") as file:
        read = _reader(file)
        while chunk := read(CHUNK):
            yield chunk


def text(path: Path) -> Iterator[bytes]:
    """Yield the decompressed text of a file in UTF-8, without a byte-order mark, a megabyte at a time.

    path: file to read.

    Errors: the errors of `chunks` and of `decode_text`.
    """
    return decode_text(chunks(path), str(path))


def decode_text(chunks: Iterable[bytes], place: str) -> Iterator[bytes]:
    """Convert text in UTF-8, UTF-16 or UTF-32 to UTF-8 without a byte-order mark.

    The byte-order mark at the start of the text tells its encoding. Text without a mark stays unchanged.

    chunks: bytes of the text.
    place: name of the text in messages.

    Errors: ValueError, with the place, for bytes that do not fit the encoding.
    """
    source = iter(chunks)
    first = b""
    while len(first) < LONGEST_MARK and (chunk := next(source, b"")):
        first += chunk
    mark = _mark(first)
    if mark is None or MARKS[mark] == "utf-8":
        if first := first[len(mark or b"") :]:
            yield first
        yield from source
        return
    decoder = codecs.getincrementaldecoder(MARKS[mark])()
    try:
        yield decoder.decode(first).encode()
        for chunk in source:
            yield decoder.decode(chunk).encode()
        decoder.decode(b"", final=True)
    except UnicodeError as error:
        name = MARKS[mark].upper()
        raise ValueError(
            f"{place} is damaged: it has the byte-order mark of {name} but other bytes; write it as UTF-8"
        ) from error


def _mark(first: bytes) -> bytes | None:
    """Return the byte-order mark at the start of a text; None without a mark."""
    return next((mark for mark in MARKS if first.startswith(mark)), None)


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a text file, decompressed, in UTF-8, without line ends.

    path: file to read.
    """
    last = b""
    for number, line in enumerate(split_stream(text(path), b"\n")):
        if number:
            yield last.removesuffix(b"\r")
        last = line
    if last:
        yield last.removesuffix(b"\r")


def split_stream(chunks: Iterable[bytes], at: bytes) -> Iterator[bytes]:
    """Split bytes that arrive in chunks at separators, in linear time even for long pieces.

    chunks: consecutive chunks of the bytes.
    at: separator.
    """
    buffer, searched = bytearray(), 0
    for chunk in chunks:
        buffer += chunk
        if buffer.find(at, searched) >= 0:
            *whole, last = bytes(buffer).split(at)
            yield from whole
            buffer = bytearray(last)
        searched = max(len(buffer) - len(at) + 1, 0)
    yield bytes(buffer)


def stored_chunks(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes as they are stored, without decompression.

    path: file to read.
    """
    with _one_line_errors(path), path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def size(path: Path) -> int:
    """Return the number of bytes of a file's text, decompressed and in UTF-8.

    path: file to read.
    """
    with _one_line_errors(path), path.open("rb") as file:
        marked = _mark(file.read(LONGEST_MARK)) is not None
    return sum(map(len, text(path))) if marked or is_packed(path) else path.stat().st_size


def _reader(file: BufferedReader) -> Callable[[int], bytes]:
    """Return the read function of a file that decompresses it, chosen by its first bytes."""
    first = file.peek(6)[:6]
    if first.startswith(GZ):
        return gzip.GzipFile(fileobj=file).read
    if first.startswith(XZ):
        return lzma.LZMAFile(file).read
    return _Frames(file).read if first.startswith(ZST) else file.read


class _Frames:
    """Reader of consecutive Zstandard frames; zstandard's own reader accepts a truncated file as complete."""

    def __init__(self, file: BufferedReader) -> None:
        self.file, self.rest, self.out = file, b"", bytearray()
        self.frame: zstandard.ZstdDecompressionObj | None = None

    def read(self, count: int) -> bytes:
        """Return up to `count` decompressed bytes; b"" at the end. Errors: EOFError for a truncated frame."""
        while len(self.out) < count:
            data = self.rest or self.file.read(CHUNK // 8)
            if not data:
                if self.frame is not None:
                    raise EOFError
                break
            frame = self.frame or zstandard.ZstdDecompressor().decompressobj()
            self.out += frame.decompress(data)
            self.rest = frame.unused_data if frame.eof else b""
            self.frame = None if frame.eof else frame
        data_read = bytes(self.out[:count])
        del self.out[:count]
        return data_read


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """Turn errors of a file into messages of one line."""
    try:
        yield
    except BROKEN as error:
        raise ValueError(f"{path} is compressed, but truncated or damaged; write it again") from error
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror or error}") from error
