"""A folder in use: whoever else wants to train there is refused in one line, and the training goes on unharmed."""

import copy
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kinformer.lab.member_choice import folder_name
from kinformer.lab.train import folder_lock as lock_module
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.distributed import SingleProcess
from kinformer.lab.train.fit import fit
from kinformer.lab.train.folder_lock import LOCK, FolderInUse, lock_folder
from kinformer.lab.train.train import train
from tests.cli.test_commands import fails
from tests.lab.train import tiny
from tests.lab.train.runs import SMALL, same, steps

COMPARED = "gpt(d=16,depth=1,heads=2,length=8)"


def others(folder: Path) -> None:
    """Trainings into a folder, each of which must be refused."""
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(FolderInUse) as refused:
            fit(tiny.bigram(), tiny.text(), steps=2, seed=2, out=folder, **options)
        assert str(refused.value).startswith(f"{folder} is being trained by process {os.getpid()}; wait until it ends")


def test_a_live_training_is_not_disturbed(tmp_path: Path) -> None:
    class Watched(tiny.Bigram):
        def after_step(self, progress: float, stats: dict[str, Any]) -> None:
            super().after_step(progress, stats)
            others(tmp_path / "run")

    model = tiny.bigram()
    model.__class__ = Watched
    alone = copy.deepcopy(model)
    alone.__class__ = tiny.Bigram
    train(alone, tiny.text(), StepBudget(4), SMALL, folder=tmp_path / "alone")
    train(model, tiny.text(), StepBudget(4), SMALL, folder=tmp_path / "run")
    assert steps(tmp_path / "run") == [1, 2, 3, 4] and same(model, alone)
    assert not (tmp_path / "run" / LOCK).exists()
    assert fit(tiny.bigram(), tiny.text(), steps=2, out=tmp_path / "run", overwrite=True).step == 2


def test_a_training_that_fails_leaves_its_folder_free(tmp_path: Path) -> None:
    class Failing(tiny.Bigram):
        def after_step(self, progress: float, stats: dict[str, Any]) -> None:
            raise RuntimeError("it fails")

    model = tiny.bigram()
    model.__class__ = Failing
    with pytest.raises(RuntimeError, match="it fails"):
        train(model, tiny.text(), StepBudget(4), SMALL, folder=tmp_path)
    assert train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path).step == 2


def test_commands_are_refused_and_touch_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 200)
    sizes = "--batch 2 --length 8 --steps 2".split()
    rest = ["--data", f"text={tmp_path}/text", *sizes, "--out", f"{tmp_path}/run"]
    member = ["gpt", "d=16", "depth=1", "heads=2", "length=8"]
    commands = {
        "run": [["train", *member, *rest], ["train", *member, *rest, "--resume"]],
        "run/phase-1": [["train", *member, *rest, "--then", "length=8"]],
        f"run/{folder_name('gpt(d=16, depth=1, heads=2, length=8)')}": [["compare", COMPARED, *rest]],
    }
    commands["run"] += [
        ["train", *member, *rest, "--overwrite"],
        ["train", *member, *rest, "--then", "length=8"],
        ["compare", COMPARED, *rest],
    ]
    for place, every in commands.items():
        with lock_folder(tmp_path / place):
            (tmp_path / place / "metrics.jsonl").write_text('{"metric": "of another process"}')
            for words in every:
                before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
                fails(capsys, words, f"{place} is being trained by process {os.getpid()}; wait until it ends")
                assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
            (tmp_path / place / "metrics.jsonl").unlink()
    assert not (tmp_path / "run").exists()


def test_a_comparison_holds_the_folders_of_its_members(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path, within=True),
        pytest.raises(FolderInUse, match=f"^{tmp_path} is being trained by process"),
    ):
        train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path / "gpt" / "lr=0.1")
    assert not (tmp_path / "gpt").exists()
    with lock_folder(tmp_path):  # a training beside others in one folder
        assert train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path / "gpt" / "lr=0.1").step == 2


def test_one_of_several_processes_holds_the_folder(tmp_path: Path) -> None:
    class Second(SingleProcess):
        rank, size = 1, 2
        refused = 0.0

        def reduce_max(self, value: float) -> float:
            return max(value, self.refused)

    second = Second()
    with lock_folder(tmp_path), lock_folder(tmp_path, second):
        pass
    second.refused = 1.0  # the first process says so
    with pytest.raises(FolderInUse, match="is being trained by another process"), lock_folder(tmp_path, second):
        pass


def test_it_trains_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("kinformer.checkpoint.lock.fcntl.flock", refused)
    with pytest.warns(UserWarning, match="its file system has no locks") as warned:
        assert train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path).step == 2
    assert len(warned) == 1


def test_a_folder_that_is_removed_while_it_is_claimed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that was refused removes the folder that it made."""
    locked, folder = lock_module.file_lock, tmp_path / "run"

    def removed_at_first(path: Path, *, wait: bool) -> Any:
        if folder.exists() and not removed:
            removed.append(folder)
            folder.rmdir()
        return locked(path, wait=wait)

    removed: list[Path] = []
    monkeypatch.setattr(lock_module, "file_lock", removed_at_first)
    with lock_folder(folder):
        assert removed and (folder / LOCK).exists()
        with pytest.raises(FolderInUse), lock_folder(folder):
            pass


def test_an_error_of_the_first_process_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class First(SingleProcess):
        rank, asked = 0, 0

        def reduce_max(self, value: float) -> float:
            First.asked += 1
            return value

    def broken(path: Path) -> None:
        raise OSError(errno.EIO, "a broken disk")

    monkeypatch.setattr(lock_module, "check_unlocked", broken)
    with pytest.raises(OSError, match="a broken disk"), lock_folder(tmp_path / "run", First()):
        pass
    assert First.asked == 1
