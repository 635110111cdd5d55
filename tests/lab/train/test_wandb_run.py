"""Weights & Biases: the numbers of metrics.jsonl in a run that a resumed training continues, without any question."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb

from kinformer.cli.__main__ import run
from kinformer.lab.train.fit import fit
from kinformer.lab.train.metrics_logger import LoggedRun, step_and_numbers
from kinformer.lab.train.wandb_run import WandbRun
from tests.cli.test_commands import BIGRAM, fails
from tests.lab.train import tiny

BLOCK, HEADER = 32_768, 7  # of the log files of wandb, which are those of LevelDB


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without a network and without an account of the machine that runs the tests."""
    wandb.teardown()
    for name, value in {"HOME": tmp_path / "home", "NETRC": tmp_path / "none", "WANDB_MODE": "offline"}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_DIR", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    yield
    wandb.teardown()


def records(file: Path) -> Iterator[Any]:
    """The records of a run that wandb has written on this machine."""
    from wandb.proto import wandb_internal_pb2

    proto: Any = wandb_internal_pb2
    data, at, whole = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # too little is left of the block for a header
            at += BLOCK - at % BLOCK
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield proto.Record.FromString(whole)
            whole = b""


def history(folder: Path) -> list[dict[str, float]]:
    """The numbers of all runs in the folder of a training, in order, without those that wandb adds."""
    rows = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in records(file):
            if record.HasField("history"):
                items = {"".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
                rows.append({name: json.loads(value) for name, value in items.items() if name[0] != "_"})
    return rows


def config(file: Path) -> dict[str, Any]:
    """The configuration of a run."""
    begun = next(record.run for record in records(file) if record.HasField("run"))
    return {item.key: json.loads(item.value_json) for item in begun.config.update}


def command(folder: Path, *options: str) -> list[str]:
    (folder / "text").write_bytes(b"the cat sat on the mat. " * 200)
    words = ["train", "gpt", "d=16", "depth=1", "heads=2", "--data", f"text={folder}/text", "--out", f"{folder}/run"]
    return [*words, "--batch", "2", "--length", "8", "--wandb", *options]


def test_a_run_has_the_numbers_of_metrics_and_a_resumed_training_continues_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run(command(tmp_path, "--steps", "3", "--wandb-project", "cats")) == 0
    err = capsys.readouterr().err
    assert f"gpt(d=16, depth=1, heads=2): wandb records the run at {tmp_path}/run/wandb/offline-run-" in err
    first = json.loads((tmp_path / "run/wandb.json").read_text())
    assert run(command(tmp_path, "--steps", "5", "--resume")) == 0
    assert json.loads((tmp_path / "run/wandb.json").read_text()) == first == {"id": first["id"], "project": "cats"}
    files = sorted((tmp_path / "run").glob("wandb/offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{first['id']}.wandb"] * 2
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()[1:]]
    expected = [{"step": step, **numbers} for step, numbers in map(step_and_numbers, lines)]
    assert [row["step"] for row in expected] == [1, 2, 3, 3, 4, 5, 5]
    assert history(tmp_path / "run") == expected
    stored = config(files[0])
    assert stored["member"] == "gpt" and stored["keywords"]["d"] == 16 and stored["settings"]["batch"] == 2
    assert stored["data"] == f"text={tmp_path}/text" and stored["settings"]["schedule"] == "cosine"


def test_fit_records_a_run_and_continues_it(tmp_path: Path) -> None:
    out, model = tmp_path / "run", tiny.bigram()
    fit(model, tiny.text(), steps=2, batch=2, length=8, out=out, wandb=True)
    first = json.loads((out / "wandb.json").read_text())
    fit(tiny.bigram(), tiny.text(), steps=3, batch=2, length=8, out=out, wandb=True, resume=True)
    assert json.loads((out / "wandb.json").read_text()) == first
    assert [row["step"] for row in history(out) if "loss" in row] == [1, 2, 3]
    assert config(min(out.glob("wandb/offline-run-*/*.wandb")))["settings"]["batch"] == 2


def test_the_variable_of_the_package_names_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, names in {"plain": {}, "named": {"WANDB_PROJECT": "dogs"}}.items():
        wandb.teardown()
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        logger = WandbRun(LoggedRun("gpt", tmp_path / place, {}, group="all"))
        (tmp_path / place).mkdir()
        logger.log(1, {"loss": 2.0})
        logger.close()
        assert json.loads((tmp_path / place / "wandb.json").read_text())["project"] == names.get(
            "WANDB_PROJECT", "kinformer"
        )


def test_without_an_account_nothing_is_asked_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WANDB_MODE")

    def ask(*_: object) -> str:
        raise AssertionError("a question to the user")

    monkeypatch.setattr("builtins.input", ask)
    fails(capsys, command(tmp_path, "--steps", "3"), "wandb knows no account on this machine. Set WANDB_MODE=offline")
    wandb.teardown()
    monkeypatch.setenv("WANDB_MODE", "off line")
    fails(capsys, command(tmp_path, "--steps", "3"), "wandb refuses its settings: mode: Input should be 'online',")
    assert not (tmp_path / "run").exists()


def test_a_missing_package_and_a_useless_project_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(tmp_path, "--steps", "3")
    useless = [word for word in words if word != "--wandb"]
    fails(capsys, [*useless, "--wandb-project", "cats"], "--wandb-project has no effect without --wandb; leave it out")
    monkeypatch.setitem(sys.modules, "wandb", None)
    fails(
        capsys,
        words,
        "wandb is not installed; run `pip install '.[wandb]'` in kinformer's folder, or leave out the option wandb",
    )
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    fails(capsys, [*useless, "--tensorboard"], "tensorboardX is not installed; run `pip install '.[tensorboard]'`")
    assert not (tmp_path / "run").exists()


def test_a_line_of_metrics_is_numbers_by_name() -> None:
    line = {"step": 3, "loss": 1.5, "parts": {"penalty": 0.5}, "tokens": 48}
    assert step_and_numbers(line) == (3, {"loss": 1.5, "parts/penalty": 0.5, "tokens": 48})
    assert step_and_numbers({"valid": 2.0, "others": {"rows": 0.1}, "after": 7}) == (
        7,
        {"valid": 2.0, "others/rows": 0.1},
    )


@pytest.mark.prove
def test_a_comparison_has_a_run_for_each_training_in_one_group(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 200)
    words = ["--data", f"text={tmp_path}/text", "--out", f"{tmp_path}/all", "--batch", "2", "--length", "8"]
    assert run(["compare", BIGRAM, *words, "--steps", "40", "--seeds", "2", "--wandb", "--tensorboard"]) == 0
    for seed in (0, 1):
        folder = tmp_path / f"all/bigram/seed={seed}"
        assert [row["step"] for row in history(folder) if "loss" in row] == list(range(1, 41)), "in two turns"
        (file,) = folder.glob("wandb/offline-run-*/*.wandb")
        begun = next(record.run for record in records(file) if record.HasField("run"))
        assert (begun.run_group, begun.display_name) == ("all", f"bigram seed={seed}")
        assert any((folder / "tensorboard").iterdir())
