"""What is wrong with a command is told before what --out holds: a user adds --overwrite only to a right command."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kinformer.cli.__main__ import run
from kinformer.lab.data.resolve import DataSource
from tests.cli.test_commands import fails

SMALL = "d=16 depth=1 heads=2 length=8"
WRONG = {
    "gtp --steps 1": "there is no member 'gtp'",
    f"gpt {SMALL} dept=3 --steps 1": "has no keyword 'dept'",
    "gpt depth=two --steps 1": "got 'two'",
    "gpt depth --steps 1": "'depth' is not a keyword",
    "gpt d=10 heads=3 --steps 1": "d=10 is not a multiple of heads=3",
    f"gpt {SMALL} --steps 1 --lr nan": "lr",
    f"gpt {SMALL} --steps 1 --lr 0": "wrong lr: got 0.0, expected a number above 0",
    f"gpt {SMALL}": "give either --steps N or --minutes M",
    f"gpt {SMALL} --steps 1 --minutes 1": "give either --steps N or --minutes M",
    f"gpt {SMALL} --steps 0": "got 0, expected at least 1",
    f"gpt {SMALL} --minutes -1": "got -1, expected a number above 0",
    f"gpt {SMALL} --steps x": "valid integer",
    f"gpt {SMALL} --steps 1 --clip 0": "wrong clip: got 0.0, expected a number above 0",
    f"gpt {SMALL} --steps 1 --accumulate 5": "wrong accumulate: got 5, expected at most 4, the rows of a batch",
    f"gpt {SMALL} --steps 1 --precision half": "wrong --precision: got 'half', expected float32, bf16 or fp16",
    f"gpt {SMALL} --steps 1 --warmup 2.5": "warmup=2.5",
    f"gpt {SMALL} --steps 1 --betas 1": "betas",
    f"gpt {SMALL} --steps 1 --eps 0": "eps=0.0",
    f"gpt {SMALL} --steps 1 --device gpu7": "there is no device 'gpu7'",
    f"gpt {SMALL} --steps 1 --valid /none": "no file or folder /none",
    f"gpt {SMALL} --steps 1 --from /none": "no file or folder /none",
    f"gpt {SMALL} --steps 1 --step 1": "No such option",
    f"gpt {SMALL} --steps 1 --parallel shard": "--parallel has no effect",
    f"gpt {SMALL} --steps 1 --then steps=x": "--then steps=x",
    f"gpt {SMALL} --steps 1 --then depth=two": "got 'two'",
    "transformer d=16 depth=1 --steps 1": "reads pairs",
}


def compared(words: str) -> list[str]:
    """The same members, keywords and options as words of `compare`."""
    member, *rest = words.split()
    keywords = [word for word in rest[: next((n for n, w in enumerate(rest) if w[0] == "-"), None)]]
    return [f"{member}({','.join(keywords)})" if keywords else member, "gpt", *rest[len(keywords) :]]


ONLY_TRAIN = ("--clip", "--accumulate", "--precision", "--warmup", "--betas", "--eps", "--from", "--parallel", "--then")
COMPARED = [words for words in WRONG if not any(option in words for option in ONLY_TRAIN) and "reads p" not in words]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a folder with a comparison."""
    folder = tmp_path_factory.mktemp("full")
    (folder / "text").write_bytes(b"the cat sat on the mat. " * 200)
    assert run(["train", "gpt", *SMALL.split(), *data(folder), "--steps", "1", "--out", f"{folder}/run"]) == 0
    (folder / "all").mkdir()
    for name in ("comparison.json", "results.json"):
        (folder / "all" / name).write_text("{}")
    return folder


def data(folder: Path) -> list[str]:
    return ["--data", f"text={folder}/text", "--batch", "4", "--length", "8"]


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", WRONG)
def test_train_tells_a_mistake_before_what_the_folder_holds(
    words: str, full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(full)
    fails(capsys, ["train", "--out", f"{full}/run", *words.split(), *data(full)], WRONG[words])
    assert files(full) == before


@pytest.mark.parametrize("words", COMPARED)
def test_compare_tells_a_mistake_before_what_the_folder_holds(
    words: str, full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(full)
    message = (
        "expected exactly one of --minutes M, --steps N and --flops F"
        if "give either" in WRONG[words]
        else WRONG[words]
    )
    fails(capsys, ["compare", "--out", f"{full}/all", *compared(words), *data(full)], message)
    assert files(full) == before


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_right_command_is_refused_before_its_data_are_read(
    command: str, full: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[object] = []
    original: Callable[..., object] = DataSource.read
    monkeypatch.setattr(
        DataSource, "read", lambda *arguments, **keywords: read.append(arguments) or original(*arguments, **keywords)
    )
    member = ["gpt", *SMALL.split()] if command == "train" else ["gpt"]
    out = "run" if command == "train" else "all"
    fails(
        capsys,
        [command, "--out", f"{full}/{out}", *member, *data(full), "--steps", "1"],
        "which would be overwritten. Give another --out",
    )
    assert not read


def test_play_and_read_tell_a_wrong_model_before_what_is_there(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, ["play", f"{full}/run", "--env", "t_maze", "--out", f"{full}/all"], "reads text data and cannot act")
    fails(
        capsys,
        ["play", "--env", "t_maze", "--random", "1", "--return", "nan", "--out", f"{full}/all"],
        "wrong --return: got nan or inf, expected a finite number",
    )
    (full / "kept").touch()
    config = full / "run" / "config.json"
    whole = config.read_bytes()
    config.write_bytes(b"{")
    try:
        words = ["read", f"{full}/run", f"{full}/text", "--save", f"{full}/kept"]
        fails(capsys, words, "config.json is truncated or not JSON")
    finally:
        config.write_bytes(whole)
    fails(capsys, words, "already exists; give another --save")
