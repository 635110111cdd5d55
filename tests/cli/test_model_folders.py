"""Folders that are given in place of a model: the message names the folder that works."""

import json
from pathlib import Path

import pytest

from kinformer.cli.__main__ import run
from tests.cli.folders import folder
from tests.cli.test_commands import fails

COMMANDS = {
    "generate": "--prompt a",
    "evaluate": "--data text=stdlib",
    "read": "{text} --save {text}.state",
    "fill": "--text a_b",
    "forecast": "--data series={text} --out {text}.csv",
    "calibrate": "--data text=stdlib",
    "play": "--env t_maze",
    "knn-lm": "--datastore {text} --data text=stdlib",
    "datastore build": "--data text=stdlib --out {text}.store",
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(b"the cat sat on the mat. " * 20)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_of_runs_names_them(
    command: str, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gpt", "gpt/best", "llama/seed=0", "llama/seed=1"):
        folder(tmp_path / "three" / name, "gpt", length=8)
    options = COMMANDS[command].format(text=text).split()
    where = str(tmp_path / "three")
    message = f"{where} holds 3 runs: gpt, llama/seed=0, llama/seed=1; give {where}/gpt"
    fails(capsys, [*command.split(), where, *options], message)
    file = f"{where}/gpt/model.safetensors"
    fails(capsys, [*command.split(), file, *options], f"is a file, but a model is a folder; give {where}/gpt")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_hugging_face_folder_without_weights_says_so(
    command: str, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 12}))
    options = COMMANDS[command].format(text=text).split()
    message = "hub: there is no model.safetensors"
    fails(capsys, [*command.split(), str(tmp_path / "hub"), *options], message)


def test_many_runs_are_counted_and_a_member_is_trained_first(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(8):
        (tmp_path / "many" / f"run{n}").mkdir(parents=True)
        (tmp_path / "many" / f"run{n}" / "config.json").touch()
    where = tmp_path / "many"
    message = f"{where} holds 8 runs: {', '.join(f'run{n}' for n in range(6))} and 2 more; give {where}/run0"
    fails(capsys, ["generate", str(where), "--prompt", "a"], message)
    fails(capsys, ["generate", str(tmp_path), "--prompt", "a"], f"{tmp_path} holds 8 runs: many/run0, ")
    (tmp_path / "other").mkdir()
    fails(capsys, ["generate", f"{tmp_path}/other", "--prompt", "a"], "other is not a model: it has no config.json")
    monkeypatch.chdir(tmp_path)
    message = "kinformer train gpt --data text=stdlib --minutes 3 --out runs/gpt"
    fails(capsys, ["generate", "gpt", "--prompt", "a"], message)


def test_a_run_and_its_best_model_both_work(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    for place in (out, out / "best"):
        folder(place, "gpt", length=32)
    for place in (out, out / "best"):
        assert run(["evaluate", str(place), "--data", f"text={text}", "--bytes", "20"]) == 0
        assert run(["generate", str(place), "--prompt", "the", "--tokens", "2"]) == 0
        assert run(["read", str(place), str(text), "--save", f"{place}.state"]) == 0


def test_the_best_run_of_a_folder_is_advised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"a": 2.5, "b": 1.5, "c": 2.0}.items():
        folder(tmp_path / name, "gpt", length=8)
        metric = {"name": "bits per byte", "unit": "bits", "better": "less", "per": "byte"}
        lines = [{"metric": metric}, {"step": 1, "loss": 3.0}, {"after": 1, "valid": value}]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    advice = f"give {tmp_path}/b, which has the best validation metric"
    fails(capsys, ["generate", str(tmp_path), "--prompt", "a"], advice)
    (tmp_path / "c/metrics.jsonl").unlink()
    fails(capsys, ["generate", str(tmp_path), "--prompt", "a"], f"give {tmp_path}/a")
