"""Tokens on disk: made once for the same bytes, remade where damaged, nothing half made; larger than memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kinformer.lab.data.support import array_cache
from kinformer.lab.data.support import tokenized_data as tokens
from kinformer.lab.data.text import read

ROOT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KINFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tokens, "HELD", 0)
    return tmp_path


def entries(home: Path) -> list[Path]:
    return [path for path in (home / "cache").iterdir() if path.is_dir()]


def test_what_is_on_disk_is_what_is_in_memory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(120):
        (home / "data").mkdir(exist_ok=True)
        (home / "data" / str(n)).write_bytes(f"text {n} ".encode() * 20)
    mapped = read(str(home / "data"))
    assert len(entries(home)) == 1
    monkeypatch.setattr(tokens, "HELD", 1 << 20)
    in_memory = read(str(home / "data"))
    assert len(entries(home)) == 1 and in_memory.split == mapped.split
    for name in ("train", "valid", "test"):
        assert torch.equal(getattr(in_memory, name), getattr(mapped, name))
        assert torch.equal(in_memory.begins[name], mapped.begins[name])


def test_the_same_bytes_are_made_tokens_once_and_others_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (home / name).mkdir()
        (home / name / "a").write_bytes(b"the same text " * 50)
    first = read(str(home / "one" / "a"), tokenizer="bpe:260")
    calls = []
    monkeypatch.setattr(tokens, "_make", lambda *arguments: calls.append(arguments))
    repeated = read(str(home / "two" / "a"), tokenizer="bpe:260")
    assert not calls and torch.equal(first.train, repeated.train) and len(entries(home)) == 1
    monkeypatch.undo()
    monkeypatch.setenv("KINFORMER_CACHE", str(home / "cache"))
    (home / "two" / "a").write_bytes(b"another text  " * 50)
    read(str(home / "two" / "a"), tokenizer="bpe:260")
    read(str(home / "two" / "a"), tokenizer="bpe:261")
    assert len(entries(home)) == 3


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a bit": lambda entry: spoil(entry / "train.bin"),
    "its end": lambda entry: (entry / "train.bin").write_bytes((entry / "train.bin").read_bytes()[:-1]),
    "a file": lambda entry: (entry / "valid.bin").unlink(),
    "its list": lambda entry: (entry / "entry.json").write_text("{"),
    "its form": lambda entry: (entry / "entry.json").write_text(
        json.dumps({**json.loads((entry / "entry.json").read_text()), "edition": 0})
    ),
    "all": lambda entry: [path.unlink() for path in entry.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_remade(home: Path, damage: str) -> None:
    (home / "a").write_bytes(b"some text " * 90)
    before = bytes(read(str(home / "a")).train.tolist())
    (entry,) = entries(home)
    DAMAGE[damage](entry)
    assert bytes(read(str(home / "a")).train.tolist()) == before
    assert array_cache.CacheEntry(entry).is_intact()


def test_what_cannot_be_made_leaves_nothing_behind(home: Path) -> None:
    (home / "a").write_bytes(b"text " * 99 + b"\xff" + b" text" * 99)
    with pytest.raises(ValueError, match="is not UTF-8"):
        read(str(home / "a"), tokenizer="bpe:260")
    assert not entries(home)


def test_a_folder_that_cannot_be_written_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "a").write_bytes(b"text " * 99)
    (home / "file").touch()
    monkeypatch.setenv("KINFORMER_CACHE", str(home / "file" / "cache"))
    with pytest.raises(
        OSError, match="cannot write the token cache in .*: Not a directory; free disk space there, or set KINFORMER_C"
    ):
        read(str(home / "a"))


def test_what_is_there_is_read_from_a_folder_that_cannot_be_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "a").write_bytes(b"text " * 99)
    (home / "b").write_bytes(b"word " * 99)
    before = read(str(home / "a"))

    def refused(path: Path, *, wait: bool) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(array_cache, "file_lock", refused)
    assert torch.equal(read(str(home / "a")).train, before.train)
    with pytest.raises(
        OSError,
        match="cannot write the token cache in .*: Permission denied; free disk space there, or set KINFORMER_C",
    ):
        read(str(home / "b"))


def python(code: str, *words: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FULL = """
import resource, signal, sys
from kinformer.cli.__main__ import run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
sys.stderr = sys.stdout
print(run(["train", "gpt", "--steps", "1", "--out", sys.argv[1] + "/out", "--data", "text=" + sys.argv[1] + "/a.gz"]))
"""


def test_a_full_disk_is_one_line_and_leaves_nothing(home: Path) -> None:
    import gzip

    (home / "a.gz").write_bytes(gzip.compress(b"some text " * 9000))
    lines = python(FULL, str(home), KINFORMER_CACHE=str(home / "cache")).splitlines()
    assert len(lines) == 2 and lines[1] == "2" and "Traceback" not in lines[0]
    assert (
        lines[0].startswith("kinformer: cannot write the token cache in ")
        and "set KINFORMER_CACHE to another folder" in lines[0]
    )
    assert not entries(home) and not (home / "out").exists()


LARGE = """
import resource, sys
from pathlib import Path
import torch
from kinformer.members.gpt import gpt
from kinformer.lab.train.fit import fit
path, blocks, spare = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
block = b"".join(b"line %d of a text that is larger than memory\\n" % n for n in range(40000))[: 1 << 20]
with path.open("wb") as file:
    for _ in range(blocks):
        file.write(block)
model = gpt(d=16, depth=1, heads=2)
fit(model, [model.sample(2, 9, 0)], steps=1)
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
limit = used + spare if spare > 0 else 1 << 30
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
history = fit(model, f"text={path}", steps=5, batch=4, length=128)
print(history.step, limit - used)
try:
    held = path.read_bytes()
except MemoryError:
    print("the limit holds")
"""


def corpus(tmp_path: Path, megabytes: int, spare: int) -> None:
    output = python(LARGE, str(tmp_path / "large.txt"), str(megabytes), str(spare), KINFORMER_CACHE=str(tmp_path / "c"))
    assert output.startswith("5 ") and output.endswith("the limit holds\n"), output
    (tmp_path / "large.txt").unlink()


def test_a_text_trains_within_less_memory_than_it_has(tmp_path: Path) -> None:
    """Anonymous memory grows by less than a text's 96 megabytes, which reading it whole would take."""
    corpus(tmp_path, 96, 80 << 20)


@pytest.mark.prove
def test_four_gigabytes_train_within_one_gigabyte(tmp_path: Path) -> None:
    corpus(tmp_path, 4096, 0)
