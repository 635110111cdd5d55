"""What a kill, a full disk or a damaged file leave of a run: the last whole save, or a line that says what is wrong."""

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from kinformer.checkpoint import atomic_files as files
from kinformer.checkpoint.atomic_files import remove
from kinformer.checkpoint.checkpoint import load, save
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.lab.train import loop
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.fit import fit
from kinformer.lab.train.history import History, Metrics
from kinformer.lab.train.run_folder import RunFolder
from kinformer.lab.train.train import train
from tests.lab.train import tiny
from tests.lab.train.runs import SMALL, Killed, lines, noise, same, steps

SAVED = ("trainer", "trainer/2", "trainer/2/trainer.json", "trainer/2/trainer.safetensors")
KEPT = {"config.json", "model.safetensors", *SAVED}
pytestmark = pytest.mark.usefixtures("no_waiting")


def test_a_kill_at_any_write_of_a_save_leaves_one_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, whole = tiny.text(200), tiny.lane()
    begin = {key: value.clone() for key, value in whole.state_dict().items()}
    train(whole, text, StepBudget(3), SMALL, folder=tmp_path / "whole")
    monkeypatch.setattr(loop, "EVERY", 0.0)
    number, kinds = 0, dict[str, int]()
    while True:
        folder, model = tmp_path / str(number), tiny.lane()
        model.load_state_dict(begin)
        with monkeypatch.context() as patch:
            writes = _dying_at(patch, number)
            try:
                train(model, text, StepBudget(3), SMALL, folder=folder)
                break
            except Killed:
                kinds[writes[-1]] = kinds.get(writes[-1], 0) + 1
        model = tiny.lane()
        if RunFolder(folder).step is None:
            model.load_state_dict(begin)
            with pytest.warns(
                UserWarning, match="no complete checkpoint to resume from: the training starts from the beginning"
            ):
                train(model, text, StepBudget(3), SMALL, folder=folder, resume=True)
        else:
            load(folder, tiny.lane)
            train(model, text, StepBudget(3), SMALL, folder=folder, resume=True)
        assert same(model, whole) and lines(folder) == lines(tmp_path / "whole")
        assert sorted(path.name for path in folder.iterdir()) == [
            "best",
            "config.json",
            "metrics.jsonl",
            "model.safetensors",
            "trainer",
        ]
        assert [path.name for path in (folder / "trainer").iterdir()] == ["3"]
        number += 1
    assert number > 25 and kinds.keys() == {"replace", "fsync"}


def _dying_at(patch: pytest.MonkeyPatch, number: int) -> list[str]:
    """The process dies at a write to the disk or a rename, before it is made."""
    calls: list[str] = []

    def dying(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            calls.append(name)
            if len(calls) > number:
                raise Killed
            return act(*arguments)

        return wrapped

    for name in ("replace", "fsync"):
        patch.setattr(files.os, name, dying(name, getattr(files.os, name)))
    return calls


def test_a_disk_that_is_full_of_metrics_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        """Takes a part of what it is given, as a disk does that fills up, and then nothing."""

        def __init__(self, file: Any) -> None:
            self.file, self.left = file, 500

        def write(self, data: bytes) -> int:
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            part = data[: self.left]
            self.left -= len(part)
            return self.file.write(part)

        def fileno(self) -> int:
            return self.file.fileno()

        def close(self) -> None:
            self.file.close()

    begin = Metrics.__init__

    def full(self: Metrics, *arguments: Any) -> None:
        begin(self, *arguments)
        self.file = Full(self.file)  # type: ignore[assignment]

    text = noise()
    train(tiny.bigram(), text, StepBudget(2), SMALL, folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "__init__", full)
        with pytest.raises(OSError, match="metrics.jsonl: No space left on device; the previous save is kept"):
            train(tiny.bigram(), text, StepBudget(9), SMALL, folder=tmp_path, resume=True)
    assert train(tiny.bigram(), text, StepBudget(9), SMALL, folder=tmp_path, resume=True).step == 9
    assert steps(tmp_path) == list(range(1, 10))


def test_weights_of_a_training_before_are_never_taken_for_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both say that they are of step 1, and the kill comes at any write of the second training."""
    begin, number = tiny.bigram(), 0
    whole = deepcopy(begin)
    train(whole, tiny.text(), StepBudget(1), SMALL, folder=tmp_path / "whole")
    while True:
        train(tiny.bigram(), tiny.text(), StepBudget(1), SMALL, folder=tmp_path / "run")
        with monkeypatch.context() as patch:
            _dying_at(patch, number)
            try:
                train(deepcopy(begin), tiny.text(), StepBudget(1), SMALL, folder=tmp_path / "run")
                break
            except Killed:
                number += 1
        if RunFolder(tmp_path / "run").step is not None:
            assert same(load(tmp_path / "run", tiny.bigram), whole), number
    assert number > 10


def test_a_save_says_of_metrics_what_the_disk_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: paths.append(os.readlink(f"/proc/self/fd/{file}")) or sync(file))
    monkeypatch.setattr(os, "replace", lambda source, target: paths.append(str(target)) or replace(source, target))
    train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path)
    weights, lines = str(tmp_path / "model.safetensors"), str(tmp_path / "metrics.jsonl")
    order = [path for path in paths if path in (weights, lines)]
    assert order == [lines, weights] * 2


@pytest.mark.parametrize(
    "line",
    [
        {"step": "2", "tokens": 1, "seconds": 1.0},
        {"valid": [], "after": 1},
        {"step": 0.5, "tokens": 1, "seconds": 1.0},
        {"step": 1, "tokens": 1e300, "seconds": 1.0},
        {"valid": 1.0, "after": 1.5},
    ],
)
def test_a_history_of_no_numbers_is_refused(tmp_path: Path, line: dict[str, Any]) -> None:
    metrics = Metrics(tmp_path, tiny.bigram().metric)
    metrics.write(line | {"minutes": 1.0, "train": 1.0})
    metrics.close()
    with pytest.raises(ValueError, match="is not a record of a training: .* is not a (whole )?number"):
        History.read(tmp_path)


def test_a_spoiled_run_is_refused_in_one_line(tmp_path: Path) -> None:
    train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path)
    for name, message in (
        ("metrics.jsonl", "metrics.jsonl does not belong to the checkpoint: got step 0 at its end, expected step 2"),
        ("trainer/2/trainer.safetensors", "is truncated or not a safetensors file"),
        ("trainer/2/trainer.json", "trainer.json is truncated or not JSON"),
    ):
        path = tmp_path / name
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 4])
        with pytest.raises(CheckpointError, match=message) as error:
            train(tiny.bigram(), tiny.text(), StepBudget(9), SMALL, folder=tmp_path, resume=True)
        assert "\n" not in str(error.value)
        path.write_bytes(data)
    assert train(tiny.bigram(), tiny.text(), StepBudget(3), SMALL, folder=tmp_path, resume=True).step == 3


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("metrics.jsonl", b'"valid": ', b'"valid": 1', "metrics.jsonl is damaged: its checksum is wrong"),
        ("trainer/2/trainer.json", b'"smooth": ', b'"smooth": 1', "trainer.json is damaged"),
        ("trainer/2/trainer.safetensors", b"", b"", "trainer.safetensors is damaged"),
        ("config.json", b'"d": 8', b'"d": 9', "holds a model of 'bigram' with d=9"),
        ("config.json", b"{", b"[" * 100_000, "config.json is truncated or not JSON"),
        ("best/config.json", b'"bytes"', b"0", "config.json was not written by kinformer"),
        ("best/model.safetensors", b"{", b"[", "is truncated or not a safetensors file"),
    ],
)
def test_what_is_not_as_it_was_written_is_not_gone_on_with(
    tmp_path: Path, name: str, old: bytes, new: bytes, message: str
) -> None:
    train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path)
    path = tmp_path / name
    data = path.read_bytes()
    path.write_bytes(data.replace(old, new, 1) if old else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=message):
        train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path, resume=True)


def test_a_kill_while_a_run_is_cleared_leaves_nothing_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is removed file by file: half of what the run before needs must not be taken for the whole."""
    train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path)

    def killed(folder: Path) -> None:
        raise Killed

    monkeypatch.setattr(files.shutil, "rmtree", killed)
    with pytest.raises(Killed):
        train(tiny.bigram(), tiny.text(), StepBudget(2), SMALL, folder=tmp_path)
    assert RunFolder(tmp_path).step is None


@pytest.mark.parametrize("first", [tiny.lane, tiny.bigram])
def test_a_kill_while_a_model_is_written_over_another_never_mixes_them(
    first: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each write: the old one, the new one, or a folder that says that its files are of different models."""
    old, new, outcomes = first(d=4), tiny.bigram(), set[str]()
    for number in range(100):
        folder = tmp_path / str(number)
        save(old, folder)
        with monkeypatch.context() as patch:
            _dying_at(patch, number)
            try:
                save(new, folder)
                break
            except Killed:
                pass
        try:
            loaded = load(folder, first)
        except CheckpointError as error:
            assert "wrong member for the model" in str(error) or "to different models" in str(error)
            outcomes.add("refused")
            continue
        assert same(loaded, old) or same(loaded, new)
        outcomes.add("old" if same(loaded, old) else "new")
    assert outcomes >= {"old", "refused"} and same(load(folder, tiny.bigram), new)


def test_a_full_disk_leaves_both_files_of_the_model_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for the config of the new model, and none for its weights."""
    old, write = tiny.lane(), files._write_synced

    def full(path: Path, data: bytes) -> None:
        write(path, data[: len(data) // 2])
        if len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    save(old, tmp_path)
    monkeypatch.setattr(files, "_write_synced", full)
    with pytest.raises(OSError, match="model.safetensors .*: No space left on device; the old content is unch"):
        save(tiny.bigram(), tmp_path)
    assert same(load(tmp_path, tiny.lane), old) and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("name", ["trainer.safetensors", "model.safetensors"])
def test_a_full_disk_leaves_nothing_of_a_save_that_found_no_room(
    name: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a run goes on once there is room: from the save before, or anew where there was none."""
    write, whole, folder, has_space = files._write_synced, tiny.bigram(), tmp_path / "run", iter([True] * before)
    begin = {key: value.clone() for key, value in whole.state_dict().items()}
    train(whole, tiny.text(), StepBudget(3), SMALL, folder=tmp_path / "whole")

    def full(path: Path, data: bytes) -> None:
        if name in path.name and "best" not in path.parts and not next(has_space, False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    model = tiny.bigram()
    model.load_state_dict(begin)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left on device"):
        patch.setattr(files, "_write_synced", full)
        patch.setattr(loop, "EVERY", 0.0)
        train(model, tiny.text(), StepBudget(3), SMALL, folder=folder)
    existing = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert {entry for entry in existing if not entry.startswith("best")} == {"metrics.jsonl", *(KEPT if before else ())}
    model = tiny.bigram()
    model.load_state_dict(begin)
    with nullcontext() if before else pytest.warns(UserWarning, match="the training starts from the beginning"):
        train(model, tiny.text(), StepBudget(3), SMALL, folder=folder, resume=True)
    assert same(model, whole) and steps(folder) == [1, 2, 3]


def test_fit_takes_nothing_away_from_what_it_cannot_go_on_with(tmp_path: Path) -> None:
    options = {"steps": 3, "batch": 2, "length": 8, "out": tmp_path}
    fit(tiny.bigram(), tiny.text(), **options)
    weights = tmp_path / "model.safetensors"
    data = weights.read_bytes()
    for spoil, says in (
        (
            lambda: weights.write_bytes(data[:500]),
            "model.safetensors is truncated .*; load weights from .*best if they",
        ),
        (
            lambda: weights.write_bytes(data) and remove(tmp_path / "trainer"),
            "cannot resume: .*trainer, the training state, is missing",
        ),
    ):
        spoil()
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(ValueError, match=says) as error:
            fit(tiny.bigram(), tiny.text(), **options, resume=True)
        assert "start again with overwrite=True" in str(error.value) and "\n" not in str(error.value)
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert fit(tiny.bigram(), tiny.text(), **options, overwrite=True).step == 3
