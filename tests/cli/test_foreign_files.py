"""Files that kinformer did not write: a folder with them is not written into unasked, and they are never removed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kinformer.cli.__main__ import run
from kinformer.cli.support.foreign_files import foreign_files, refuse_foreign
from kinformer.lab.errors import UserError
from tests.cli.test_commands import fails

NOTES = {"a.txt": "a", "best/photo.png": "b", "c.csv": "c", "trainer/train.py": "d"}


@pytest.fixture
def command(tmp_path: Path) -> Iterator[list[str]]:
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 200)
    for name, text in NOTES.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)
    words = ["d=16", "depth=1", "heads=2", "--data", f"text={tmp_path}/text", "--steps", "3", "--batch", "2"]
    yield [*words, "--length", "8", "--out", f"{tmp_path}/mine"]
    assert {name: (tmp_path / "mine" / name).read_text() for name in NOTES} == NOTES


def test_a_run_is_written_beside_foreign_files_only_if_asked(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "gpt", *command]
    message = f"{tmp_path}/mine holds files that kinformer did not write: a.txt, best/, c.csv and 1 more. Give another"
    for options in ([], ["--resume"]):
        fails(capsys, [*words, *options], message)
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["a.txt", "best", "c.csv", "trainer"]
    assert run([*words, "--overwrite"]) == 0 and run([*words, "--overwrite"]) == 0, "twice: an earlier run is removed"
    assert (tmp_path / "mine/best/model.safetensors").is_file()
    assert sorted(path.name for path in (tmp_path / "mine/trainer").iterdir()) == ["3", "train.py"]
    longer = [word if word != "3" else "4" for word in words]
    assert run([*longer, "--resume"]) == 0, "a run that is there is continued"
    assert sorted(path.name for path in (tmp_path / "mine/trainer").iterdir()) == ["4", "train.py"]


def test_a_comparison_too(tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "gpt(d=16, depth=1, heads=2)", *command[3:]]
    fails(capsys, words, "holds files that kinformer did not write: a.txt, best/, c.csv and 1 more")
    assert run([*words, "--overwrite"]) == 0 and (tmp_path / "mine/results.json").is_file()


@pytest.mark.parametrize("name", ["config.json", "results.json"])
def test_a_file_of_another_program_is_never_replaced(
    name: str, tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine" / name).write_text('{"model_type": "llama"}')
    if name == "config.json":
        (tmp_path / "mine/model.safetensors").write_text("weights")
    for options in ([], ["--overwrite"]):
        capsys.readouterr()
        assert run(["train", "gpt", *command, *options]) == 2
    assert (
        f"{name} was not written by kinformer, and --overwrite does not replace foreign files"
        in capsys.readouterr().err
    )
    assert (tmp_path / "mine" / name).read_text() == '{"model_type": "llama"}'


@pytest.mark.parametrize(
    ("name", "text"), [("best/config.json", "{}"), ("metrics.jsonl", '{"loss": 3}\n{}\n'), ("metrics.jsonl", "notes\n")]
)
def test_a_file_of_another_program_is_known_by_its_content(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best/model.safetensors").touch()
    assert list(foreign_files(tmp_path)) == []
    (tmp_path / name).write_text(text)
    assert list(foreign_files(tmp_path)) == [name.replace("config.json", "")]
    with pytest.raises(UserError, match="kinformer did not write|was not written by kinformer"):
        refuse_foreign(tmp_path, overwrite=False, resume=False)
    if name == "best/config.json":
        with pytest.raises(UserError, match="best/config.json was not written by kinformer, and --overwrite does not"):
            refuse_foreign(tmp_path, overwrite=True, resume=False)


def test_folders_of_kinformer_are_not_foreign(tmp_path: Path) -> None:
    for name in ("runs/gpt/best/config.json", "all/gpt/seed=0/metrics.jsonl", "tensorboard/events.out.tfevents.1"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").touch()
    assert list(foreign_files(tmp_path)) == []
    (tmp_path / "src").mkdir()
    (tmp_path / "src/main.py").touch()
    assert list(foreign_files(tmp_path)) == ["src/"]
