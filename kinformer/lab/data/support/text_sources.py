"""Sources of text: files, folders, globs and rows of data sets, read document by document."""

import glob
import hashlib
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kinformer.checkpoint import decompress as unpacked
from kinformer.checkpoint.atomic_files import contents, digest, existing_path
from kinformer.lab.data.support.dataset_rows import DatasetRow, hugging_face, is_json_lines, json_lines

FORMS = "write text=stdlib or text=PATH"
FEW = 100  # with fewer files or documents, a random split may be empty
LOOKED_AT = 65_536  # bytes at the start of a file that decide whether it is text
TABLES = (".parquet", ".arrow")  # rows that `datasets` reads
_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


class SourceDocument(NamedTuple):
    """A document of a text source.

    place: name of the document, such as its file and line, for errors.
    key: bytes that are hashed to choose its split.
    chunks: a function that reads its bytes.
    size: a function that counts its bytes.
    split: the split that the data set gives it; None if it gives none.
    """

    place: str
    key: bytes
    chunks: Callable[[], Iterator[bytes]]
    size: Callable[[], int]
    split: str | None = None


@dataclass(frozen=True)
class TextSource:
    """Texts in named files, or in the rows of a data set that `datasets` reads.

    name: the specification of the data.
    files: pairs of the name and the path of a file.
    data_set: name of the data set; "" for files.
    field: field of a row that holds its text, for data sets and JSON lines.
    between: separator of documents in a file: "lines", "blank" for blank lines, or another text; "" for one document
        per file.
    piped: bytes of a pipe, which cannot be read twice.
    rows: rows in memory, or of an object that the user passed.
    """

    name: str
    files: tuple[tuple[str, Path], ...] = ()
    data_set: str = ""
    field: str = ""
    between: str = ""
    piped: bytes = b""
    rows: Iterable[DatasetRow] = ()

    def documents(self) -> Iterator[SourceDocument]:
        """Yield all documents; files are in the order of the SHA-256 of their names."""
        for rows in (hugging_face(self.data_set) if self.data_set else (), self.rows):
            yield from (_row(row, self.field or "text") for row in rows)
        if self.piped:
            yield _document(self.name, self.piped)
        for name, path in self.files:
            for document in self._documents_in(name, path):
                yield document if len(self.files) < FEW else document._replace(key=_bytes(name))

    def _documents_in(self, name: str, path: Path) -> Iterator[SourceDocument]:
        if is_json_lines(path) or (self.field and len(self.files) == 1):
            yield from (_row(row, self.field or "text") for row in json_lines(path))
        elif self.between:
            yield from (_document(str(path), piece) for piece in _pieces(_read_text(path), self.between))
        else:
            yield SourceDocument(str(path), _bytes(name), partial(_read_text, path), partial(unpacked.size, path))

    def digest(self) -> bytes:
        """Return a hash of the content: names and bytes of the files, or all rows."""
        sha = hashlib.sha256(repr((self.field, self.between)).encode() + self.piped)
        for name, path in self.files:
            sha.update(digest(_bytes(name)))
            for chunk in unpacked.stored_chunks(path):
                sha.update(chunk)
        if self.data_set or self.rows:
            for document in self.documents():
                sha.update(document.key + (document.split or "").encode())
        return sha.digest()

    @property
    def bytes_held(self) -> int | None:
        """Number of bytes in the files; None if it is unknown without unpacking them."""
        if isinstance(self.rows, list):
            return sum(document.size() for document in self.documents())
        if self.data_set or self.rows or any(unpacked.is_packed(path) for _, path in self.files):
            return None
        return sum(path.stat().st_size for _, path in self.files)


def source_of(where: str, field: str = "", between: str = "") -> TextSource:
    """Return the text source for "stdlib", "hf:NAME", a file, a folder or a glob, without hidden files.

    where: "stdlib", "hf:NAME", a path or a glob.
    field: field of a row that holds its text; "" is "text".
    between: separator of documents in a file; see `TextSource`.

    Errors: FileNotFoundError, in one line, if a file is missing or no file matches a glob. ValueError if `field` or
    `between` has no effect on the source.
    """
    name = f"text={where}"
    if where.startswith("hf:"):
        _refuse_documents(name, between)
        return TextSource(name, data_set=where.removeprefix("hf:"), field=field)
    if where == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        files = [pair for pair in _folder(root, "*.py") if not _NOT_LIBRARY & set(Path(pair[0]).parts)]
    elif not Path(where).expanduser().exists() and glob.has_magic(where):
        files = [(path, Path(path)) for path in glob.glob(str(Path(where).expanduser()), recursive=True)]
        files = [(path, file) for path, file in files if file.is_file()]
        if not files:
            raise FileNotFoundError(f"no file matches {where}; {FORMS}, or a glob in quotes")
    else:
        path = existing_path(where, FORMS)
        if path.is_fifo():
            _refuse_field(name, field)
            if between:
                raise ValueError(f"documents={between} has no effect on {name}: a pipe is one document; leave it out")
            return TextSource(name, piped=b"".join(unpacked.decode_text([contents(path)], name)))
        files = list(_folder(path)) if path.is_dir() else [(path.name, path)]
    rows = [is_json_lines(file) or bool(field and len(files) == 1) for _, file in files]
    if not any(rows):
        _refuse_field(name, field)
    if all(rows):
        _refuse_documents(name, between)
    return TextSource(
        name, tuple(sorted(files, key=lambda file: digest(_bytes(file[0])))), field=field, between=between
    )


def _refuse_field(name: str, field: str) -> None:
    """Raise ValueError if field= is given for data without rows of JSON."""
    if field:
        raise ValueError(f"field={field} has no effect on {name}, which holds no JSON lines; leave it out")


def _refuse_documents(name: str, between: str) -> None:
    """Raise ValueError if documents= is given for rows, because each row is a document."""
    if between:
        advice = "leave it out, or give documents=joined"
        raise ValueError(f"documents={between} has no effect on {name}: each row is a document; {advice}")


def _folder(root: Path, pattern: str = "*") -> Iterator[tuple[str, Path]]:
    for path in root.rglob(pattern):
        name = path.relative_to(root)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix(), path


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _row(row: DatasetRow, field: str) -> SourceDocument:
    text = row.text(field)
    return _document(row.place, text if text.endswith(b"\n") else text + b"\n")._replace(split=row.split)


def _document(place: str, text: bytes) -> SourceDocument:
    return SourceDocument(place, digest(text), lambda: iter((text,)), lambda: len(text))


def _read_text(path: Path) -> Iterator[bytes]:
    """Yield the unpacked text of a file; raise ValueError for a binary file."""
    for number, chunk in enumerate(unpacked.text(path)):
        if not number and _is_binary(chunk[:LOOKED_AT]):
            table = f"write text=hf:{path}" if path.suffix in TABLES else ""
            advice = table or "give another file, or remove it from the folder"
            raise ValueError(f"{path} is binary, expected a text; {advice}")
        yield chunk


def _is_binary(data: bytes) -> bool:
    """Return whether the bytes are no text in any encoding that extends ASCII."""
    control = sum(data.count(byte) for byte in (*range(7), *range(14, 27), *range(28, 32), 127))
    return control > len(data) / 100


def _pieces(chunks: Iterator[bytes], between: str) -> Iterator[bytes]:
    """Yield the non-empty documents of a file, separated by lines, blank lines or a text."""
    if between not in ("lines", "blank"):
        yield from (piece for piece in unpacked.split_stream(chunks, _bytes(between)) if piece.strip())
        return
    lines: list[bytes] = []
    for line in unpacked.split_stream(chunks, b"\n"):
        if line.strip():
            lines.append(line + b"\n")
        if lines and (between == "lines" or not line.strip()):
            yield b"".join(lines)
            lines = []
    if lines:
        yield b"".join(lines)
