import os
from pathlib import Path

import pytest

from kinformer.data.spec import read_spec
from kinformer.data.text import read, split_of


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_a_file_is_cut_into_three_that_join_to_the_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10
    (tmp_path / "a.bin").write_bytes(data)
    text = read(str(tmp_path / "a.bin"))
    assert [len(text.train), len(text.valid), len(text.test)] == [2304, 128, 128]
    assert b"".join(bytes(part.tolist()) for part in (text.train, text.valid, text.test)) == data


def test_a_folder_is_split_by_name_whatever_stands_beside_it(tmp_path: Path) -> None:
    files = {f"sub/{n}.txt": f"<{n}>".encode() for n in range(200)}
    small = read(str(write(tmp_path / "a", files)))
    large = read(str(write(tmp_path / "b", files | {f"more/{n}": b"x" for n in range(100)})))
    for split in ("train", "valid", "test"):
        wanted = {data for name, data in files.items() if split_of(name) == split}
        found = bytes(getattr(small, split).tolist())
        assert wanted and sorted(found) == sorted(b"".join(wanted))
        assert all(data in bytes(getattr(large, split).tolist()) for data in wanted)


def test_a_folder_is_read_in_one_order_and_without_hidden_files(tmp_path: Path) -> None:
    files = {f"{n}": bytes([n]) for n in range(50)}
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
    ("spec", "said"),
    [
        ("text=/no/such/place", "there is no file or folder /no/such/place"),
        ("txt=stdlib", "no kind of data 'txt'; the nearest is 'text'"),
        ("stdlib", "has no form KIND=WHERE"),
        ("text=", "has no form KIND=WHERE"),
    ],
)
def test_a_wrong_spec_is_named_in_one_line(spec: str, said: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        read_spec(spec)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no file with a byte"):
        read(str(tmp_path))
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="is empty"):
        read(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="holds no file with a byte"):
        read(str(tmp_path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(b"x")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, os.strerror(13), str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(OSError, match="cannot read .*secret: Permission denied"):
        read(str(tmp_path))
