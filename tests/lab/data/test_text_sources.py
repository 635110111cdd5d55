"""Where text comes from: forms of files, rows, documents and splits; each wrong input is one line."""

import builtins
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard

from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support import text_sources as sources
from kinformer.lab.data.support import train_valid_test as splits
from kinformer.lab.data.text import TextData, read

TEXT = "Größe naïve, 東京.\nthe cat sat on the mat.\n".encode() * 400
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": lambda data: zstandard.ZstdCompressor().compress(data[:999]) + zstandard.compress(data[999:]),
}


def whole(text: TextData) -> bytes:
    return b"".join(bytes(part.tolist()) for part in (text.train, text.valid, text.test))


def rows(folder: Path, count: int = 300, ending: str = "") -> Path:
    lines = [json.dumps({"body": f"note {n} of {n * n}{ending}", "kind": n % 3}) for n in range(count)]
    (folder / "notes.jsonl").write_text("\n\n".join(lines))
    return folder / "notes.jsonl"


@pytest.mark.parametrize("kind", PACKED)
def test_what_is_compressed_is_known_by_its_bytes_and_reads_as_it_was(tmp_path: Path, kind: str) -> None:
    (tmp_path / "plain").write_bytes(TEXT)
    (tmp_path / "named_otherwise.txt").write_bytes(PACKED[kind](TEXT))
    plain, packed = (read(f"{tmp_path}/{name}") for name in ("plain", "named_otherwise.txt"))
    assert all(torch.equal(getattr(plain, split), getattr(packed, split)) for split in splits.NAMES)
    assert whole(packed) == TEXT


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("kind", PACKED)
def test_what_is_cut_off_is_refused_by_name(tmp_path: Path, kind: str, share: float) -> None:
    data = PACKED[kind](TEXT)
    (tmp_path / "cut").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ValueError, match="cut is compressed, but truncated or damaged") as caught:
        read(f"{tmp_path}/cut")
    assert "\n" not in str(caught.value)


def test_no_letter_is_cut_and_a_split_is_the_same_however_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes("東".encode() * 333)
    text = read(f"{tmp_path}/a")
    assert [len(text.train), len(text.valid), len(text.test)] == [900, 51, 48]
    monkeypatch.setattr("kinformer.checkpoint.decompress.CHUNK", 7)
    reread = read(f"{tmp_path}/a")
    assert all(torch.equal(getattr(text, name), getattr(reread, name)) for name in splits.NAMES)


def test_rows_are_documents_split_by_what_they_say(tmp_path: Path) -> None:
    text = read_spec(f"text={rows(tmp_path)},field=body")
    assert isinstance(text, TextData) and "by the SHA-256 of each document; 300 documents" in text.split
    every = []
    for name in splits.NAMES:
        part = text.part(name)
        ends = [*part.document_starts.tolist()[1:], len(part.tokens)]
        pieces = [bytes(part.tokens[a:b].tolist()) for a, b in zip(part.document_starts.tolist(), ends, strict=True)]
        assert all(splits.split_of(splits.digest(piece)) == name for piece in pieces) and len(pieces) > 3
        every += pieces
    assert sorted(every) == sorted(f"note {n} of {n * n}\n".encode() for n in range(300))
    few = read_spec(f"text={rows(tmp_path, 9, ' and more' * 9)},field=body")
    assert "each document cut at" in few.split
    assert {name: len(few.begins[name]) for name in splits.NAMES} == dict.fromkeys(splits.NAMES, 9)


@pytest.mark.parametrize(
    ("documents", "want"),
    [
        ("lines", [b"a b\n", b"c\n", b"d\n", b"e##f\n"]),
        ("blank", [b"a b\nc\n", b"d\n", b"e##f\n"]),
        ("##", [b"a b\r\nc\n\n \nd\n\n\ne", b"f"]),
        ("", [b"a b\r\nc\n\n \nd\n\n\ne##f"]),
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 5, 1 << 20])
def test_documents_of_a_file(
    tmp_path: Path, documents: str, want: list[bytes], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinformer.checkpoint.decompress.CHUNK", chunk)
    (tmp_path / "a").write_bytes(b"a b\r\nc\n\n \nd\n\n\ne##f")
    result = sources.source_of(f"{tmp_path}/a", between=documents).documents()
    assert [b"".join(document.chunks()).replace(b"\r\n", b"\n") for document in result] == [
        document.replace(b"\r\n", b"\n") for document in want
    ]


def test_joined_documents_are_one_text_of_the_same_bytes(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}").write_bytes(f"book {n} ".encode() * 50)
    apart, joined = read(str(tmp_path)), read(str(tmp_path), documents="joined")
    assert torch.equal(apart.train, joined.train) and len(apart.begins["train"]) == 3 and not joined.begins


def test_a_glob_takes_what_it_matches(tmp_path: Path) -> None:
    for name in ("a.md", "b.md", "c.txt", "deep/d.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode() * 30)
    assert whole(read(f"{tmp_path}/*.md")).count(b"a.md") >= 27 and b"c.txt" not in whole(read(f"{tmp_path}/*.md"))
    assert b"d.md" in whole(read(f"{tmp_path}/**/*.md"))
    with pytest.raises(FileNotFoundError, match=r"no file matches .*\*\.rst"):
        read(f"{tmp_path}/*.rst")


def test_what_is_watched_may_be_another_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    (tmp_path / "b").write_bytes(b"another text")
    text = read_spec(f"text={tmp_path}/a", valid=f"{tmp_path}/b")
    assert isinstance(text, TextData) and bytes(text.train.tolist()) == TEXT and not len(text.test)
    assert bytes(text.valid.tolist()) == b"another text" and f"valid is text={tmp_path}/b" in text.split


def test_data_sets_are_read_from_parquet_and_text(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": [f"row {n}" for n in range(200)]}), tmp_path / "x.parquet")
    text = read_spec(f"text=hf:{tmp_path}/x.parquet")
    assert isinstance(text, TextData) and sorted(whole(text).split(b"\n")[:-1]) == sorted(
        b"row %d" % n for n in range(200)
    )
    (tmp_path / "x.txt").write_text("".join(f"row {n}\n" for n in range(200)))
    lines = read_spec(f"text=hf:{tmp_path}/x.txt")
    assert isinstance(lines, TextData) and torch.equal(lines.train, text.train)
    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("train", "validation"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"{name} {n}"}) + "\n" for n in range(5)))
    own = read_spec(f"text=hf:{folder}")
    assert isinstance(own, TextData) and "as the data set itself is split" in own.split
    assert b"validation" not in bytes(own.train.tolist()) and own.valid.tolist() == list(
        b"".join(b"validation %d\n" % n for n in range(5))
    )


WRONG: dict[str, tuple[bytes, str, str]] = {
    "no field": (b'{"a": "x"}\n', "", "line 1 of .* has no field 'text'"),
    "a field of another name": (b'{"bod": "x"}\n', ",field=body", "no field 'body'; the nearest is 'bod'"),
    "a field of another kind": (b'{"text": [1]}\n', "", "the field 'text' of line 1 of .* is not a text: got list"),
    "no json": (b'{"text": "x"}\nnotes\n', "", "line 2 of .* is not JSON; .* leave out field= for a plain text"),
    "no object": (b"[1]\n", "", "line 1 of .* is not a JSON object"),
    "nothing": (b"", "", "holds no byte"),
    "an unknown option": (b'{"text": "x"}\n', ",fild=x", "text= has no option 'fild'; the nearest is 'field'"),
    "a number": (b'{"body": 5}\n', ",field=body", "field 'body' of line 1 of .* is not a text: got 5"),
    "twice": (b'{"text": "x"}\n', ",field=x,field=y", "field is given twice"),
    "no tokenizer": (b'{"text": "x"}\n', ",tokenizer=none.json", "there is no tokenizer none.json"),
    "a tokenizer too small": (b'{"text": "x"}\n', ",tokenizer=bpe:9", "a byte-level BPE has at least 257 tokens"),
    "a tokenizer of no number": (b'{"text": "x"}\n', ",tokenizer=bpe:x", "got 'x', expected a number of tokens"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line(tmp_path: Path, name: str) -> None:
    data, options, says = WRONG[name]
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises((ValueError, FileNotFoundError), match=says) as caught:
        read_spec(f"text={tmp_path}/a.jsonl{options}")
    assert "\n" not in str(caught.value)


def test_a_table_is_sent_to_who_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(99))
    with pytest.raises(ValueError, match=rf"is binary, expected a text; write text=hf:{tmp_path}/a.parquet$"):
        read_spec(f"text={tmp_path}/a.parquet")


def test_unreadable_data_sets_are_one_line(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "bad.parquet").write_bytes(b"nonsense" * 99)
    for where, says in (("bad.parquet", "datasets cannot read hf:"), ("none.parquet", "there is no file or folder")):
        with pytest.raises(ValueError, match=says) as caught:
            read_spec(f"text=hf:{tmp_path}/{where}")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("package", "spec"), [("datasets", "text=hf:x"), ("tokenizers", "text=stdlib,tokenizer=bpe:300")]
)
def test_a_missing_package_names_its_extra(package: str, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf"pip install '.\[{package}\]'"):
        read_spec(spec)
