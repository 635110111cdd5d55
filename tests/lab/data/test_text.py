import gzip
import os
from pathlib import Path
from typing import IO

import pytest

from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support.train_valid_test import split_of
from kinformer.lab.data.text import read


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_a_file_is_cut_into_three_that_join_to_the_whole(tmp_path: Path) -> None:
    data = bytes(range(32, 160)) * 20
    (tmp_path / "a.txt").write_bytes(data)
    text = read(str(tmp_path / "a.txt"))
    assert [len(text.train), len(text.valid), len(text.test)] == [2304, 128, 128]
    assert b"".join(bytes(part.tolist()) for part in (text.train, text.valid, text.test)) == data


def test_a_folder_is_split_by_name_whatever_stands_beside_it(tmp_path: Path) -> None:
    files = {f"sub/{n}.txt": f"<{n}>".encode() for n in range(200)}
    small = read(str(write(tmp_path / "a", files)))
    large = read(str(write(tmp_path / "b", files | {f"more/{n}": b"x%d" % n for n in range(100)})))
    for split in ("train", "valid", "test"):
        expected = {data for name, data in files.items() if split_of(name.encode()) == split}
        actual = bytes(getattr(small, split).tolist())
        assert expected and sorted(actual) == sorted(b"".join(expected))
        assert all(data in bytes(getattr(large, split).tolist()) for data in expected)


def test_a_folder_is_read_in_one_order_and_without_hidden_files(tmp_path: Path) -> None:
    files = {f"{n}": f"<{n}>".encode() for n in range(150)}
    forward = read(str(write(tmp_path / "a", files)))
    backward = read(
        str(write(tmp_path / "b", dict(reversed(files.items())) | {".git/x": b"hidden", "y/.z": b"hidden"}))
    )
    assert forward.train.tolist() == backward.train.tolist()
    assert forward.train.tolist() != sorted(forward.train.tolist())


def test_the_standard_library_has_ninety_five_and_five_percent_and_no_tests() -> None:
    text = read_spec("text=stdlib")
    sizes = [len(text.train), len(text.valid), len(text.test)]
    assert sum(sizes) > 5_000_000
    assert 0.85 < sizes[0] / sum(sizes) < 0.95
    assert min(sizes) > 100_000
    everything = b"".join(bytes(part.numpy()) for part in (text.train, text.valid, text.test))
    assert b"class OrderedDict(dict)" in everything
    assert b"import unittest.mock\nfrom test import support" not in everything


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("text=/no/such/place", "there is no file or folder /no/such/place"),
        ("txt=stdlib", "no kind of data 'txt'; the nearest is 'text'"),
        ("stdlib", "does not have the form KIND=PLACE"),
        (__file__, f"is a path without its kind; write text={__file__} for a text"),
        ("text=", "does not have the form KIND=PLACE"),
    ],
)
def test_a_wrong_spec_is_named_in_one_line(spec: str, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        read_spec(spec)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no byte"):
        read(str(tmp_path))
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="holds no byte"):
        read(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="holds no byte"):
        read(str(tmp_path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(b"x")

    def refuse(path: Path, mode: str = "r") -> IO[bytes]:
        raise PermissionError(13, os.strerror(13), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OSError, match="cannot read .*secret: Permission denied"):
        read(str(tmp_path))


@pytest.mark.parametrize("count", [1, 2, 3, 6, 99])
def test_a_folder_of_few_files_has_something_of_each_in_every_split(tmp_path: Path, count: int) -> None:
    files = {f"{n}.txt": f"{n:02} ".encode() * 100 for n in range(count)}
    text = read(str(write(tmp_path, files)))
    for split, size in (("train", 270), ("valid", 15), ("test", 15)):
        content = bytes(getattr(text, split).tolist())
        assert len(content) == size * count and all(f"{n:02}".encode() in content for n in range(count))


@pytest.mark.parametrize(
    ("name", "data"),
    [("book.gz", gzip.compress(os.urandom(4000))), ("noise", os.urandom(4000)), ("zeros", bytes(4000))],
)
def test_what_is_no_text_is_refused_by_name(tmp_path: Path, name: str, data: bytes) -> None:
    write(tmp_path, {name: data, "good.txt": b"good"})
    for where in (tmp_path, tmp_path / name):
        with pytest.raises(ValueError, match=f"{name} is binary, expected a text") as caught:
            read(str(where))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["Größe, naïve, 東京, привет\n\t" * 9, "caf\xe9 \x1b[0m" * 90])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_text_in_other_encodings_than_ascii_is_text(tmp_path: Path, text: str, encoding: str) -> None:
    data = text.encode(encoding, "replace")
    (tmp_path / "a.txt").write_bytes(data)
    assert len(read(str(tmp_path / "a.txt")).train) == round(len(data) * 0.9)


def test_a_device_is_no_file() -> None:
    with pytest.raises(FileNotFoundError, match="there is no file or folder /dev/zero"):
        read("/dev/zero")
