"""Files that the user may not read: one line of one form for all of them, from every command that reads them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinformer.cli.__main__ import run
from kinformer.lab.datastore import index_file as indexing
from kinformer.lab.datastore.knn_lm_settings import KnnLMSettings
from tests.cli.test_commands import fails

FILES = {
    "config.json": "evaluate",
    "model.safetensors": "evaluate",
    "tokenizer.json": "evaluate",
    "exits.json": "evaluate",
    "trainer/2/trainer.json": "resume",
    "trainer/2/trainer.safetensors": "resume",
    "metrics.jsonl": "resume",
    "best/config.json": "resume",
    "best/model.safetensors": "resume",
    "phases.json": "phases",
    "comparison.json": "compare",
    "mine.py": "own",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text").write_bytes(b"the cat sat on the mat. the dog did not. " * 200)
    assert run(words(folder, "train")) == 0
    return folder


def words(folder: Path, command: str) -> list[str]:
    data, out = ["--data", f"text={folder}/text,tokenizer=bpe:270"], ["--out", f"{folder}/run"]
    small = ["--steps", "2", "--batch", "2", "--length", "8"]
    member = ["calm", "d=16", "depth=2", "heads=2"]
    return {
        "train": ["train", *member, *data, *out, *small],
        "resume": ["train", *member, *data, *out, *small, "--resume"],
        "phases": ["train", *member, *data, *out, *small, "--then", "steps=1", "--resume"],
        "compare": ["compare", "gpt(d=16,depth=1,heads=2)", *data, *out, *small, "--resume"],
        "own": ["train", f"{folder}/run/mine.py:mine", *data, "--out", f"{folder}/new", *small],
        "evaluate": ["evaluate", f"{folder}/run", "--data", f"text={folder}/text"],
    }[command]


def forbid(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Refuse to open the file, as the system does for a user without permission; root may read everything."""

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def opened(self: Path, *arguments: Any, **keywords: Any) -> Any:
            if self.resolve() == path.resolve():
                raise PermissionError(13, "Permission denied", str(self))
            return original(self, *arguments, **keywords)

        return opened

    for name in ("open", "read_bytes", "read_text"):
        monkeypatch.setattr(Path, name, refusing(getattr(Path, name)))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_may_not_be_read_is_one_line(
    name: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run" / name
    if not path.exists():
        path.write_text("{}")
    forbid(monkeypatch, path)
    command = words(tmp_path, FILES[name])
    capsys.readouterr()
    assert run(command) in (1, 2)
    lines = capsys.readouterr().err.splitlines()[-1]
    assert lines.startswith("kinformer: ") and f"cannot read {path}: Permission denied" in lines, lines
    assert "Errno" not in lines


def test_a_config_that_may_not_be_read_is_still_in_the_way(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forbid(monkeypatch, trained / "run" / "config.json")
    fails(capsys, words(trained, "train"), "holds a config.json that cannot be read, which would be overwritten")


@pytest.mark.parametrize(
    ("name", "read"), [("knn-lm.json", KnnLMSettings.load), (indexing.ABOUT, indexing.read_index_record)]
)
def test_what_lies_beside_a_datastore_is_told_in_the_same_words(
    name: str, read: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("{}")
    forbid(monkeypatch, tmp_path / name)
    with pytest.raises(ValueError, match=f"^cannot read {tmp_path / name}: Permission denied"):
        read(tmp_path)
