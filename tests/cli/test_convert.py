"""`kinformer convert`: the plan, the run and its report, and one line for what is wrong."""

import json
from pathlib import Path

import pytest
import torch

import kinformer as kf
from kinformer.cli.__main__ import run
from tests.cli.folders import folder
from tests.cli.test_commands import fails


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_bytes(b"the cat sat on the mat. " * 400)
    return path


def test_a_plan_is_printed_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = folder(tmp_path / "run", "llama")
    assert run(["convert", made, "--to", "window", "window=9", "sinks=2", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("window(window=9, sinks=2)\n")
    assert "equal to the source's for rows of up to 11 tokens" in out and "copied" in out
    assert run(["convert", made, "--to", "mqa", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (
        plan["recipe"] == "heads"
        and plan["options"] == {"key_heads": 1, "merge": "mean"}
        and plan["promise"]["length"] == 0
    )
    assert {fate["fate"] for fate in plan["fates"]} == {"copied", "averaged"}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_result_is_a_run_with_a_report(tmp_path: Path, book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, out = folder(tmp_path / "run", "gpt", position="rotary", depth=3), tmp_path / "out"
    words = ["convert", made, "--to", "Causal() & Band(6)", "keep=1", "--data", f"text={book}", "--out", str(out)]
    assert run([*words, "--seconds", "0.1"]) == 0
    text = capsys.readouterr().out
    assert "bits per byte" in text and "converted, reading a long row" in text
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    assert names == {"config.json", "model.safetensors", "conversion.json", "conversion.png", "report.html"}
    report = json.loads((out / "conversion.json").read_text())
    patterns = kf.load(out).member.keywords["pattern"]
    (kept,) = report["plan"]["options"]["keep"]
    losses = report["layer_losses"]
    assert losses[kept - 1] == max(losses) and patterns[kept - 1] == "Causal()"
    assert sorted(patterns)[1:] == ["Causal() & Band(6)"] * (len(patterns) - 1)
    assert [cost["length"] for cost in report["costs"]["converted"]][-1] == 32768
    assert run(["generate", str(out), "--prompt", "the cat", "--tokens", "3"]) == 0
    fails(capsys, words, f"{out} holds a model of 'gpt'")


def test_weights_of_a_conversion_start_a_training(tmp_path: Path, book: Path) -> None:
    made, out = folder(tmp_path / "run", "gpt", heads=4), tmp_path / "out"
    assert run(["convert", made, "--to", "mqa", "--out", str(out), "--seconds", "0"]) == 0
    words = ["train", "gpt", "--data", f"text={book}", "--steps", "2", "--batch", "2", "--length", "16"]
    assert run([*words, "--from", str(out), "--out", str(tmp_path / "more")]) == 0
    trained = kf.load(tmp_path / "more")
    assert trained.member.changes == kf.load(out).member.changes != ()
    assert not torch.equal(trained.embedding.weight, kf.load(out).embedding.weight)
    words[words.index("2")] = "3"
    assert run([*words, "--from", str(out), "--out", str(tmp_path / "more"), "--resume"]) == 0


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = folder(tmp_path / "run", "gpt")
    fails(capsys, ["convert", made, "--to", "mqa"], "give --out FOLDER")
    fails(capsys, ["convert", made, "--to", "nothing", "--dry-run"], "there is no conversion to 'nothing'")
    fails(capsys, ["convert", made, "--to", "mqa", "heds=1", "--dry-run"], "has no keyword 'heds'")
    few = ["convert", made, "--to", "window", "keep=1", "--out", str(tmp_path / "x")]
    fails(capsys, few, "chooses the layers to keep by measurement: got no data")
    fails(capsys, [*few, "--minutes", "1"], "an adaptation trains on a text; give --data text=PATH")
    assert not (tmp_path / "x").exists()


def test_a_conversion_with_a_datastore_is_a_run(tmp_path: Path, book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, out = folder(tmp_path / "run", "gpt"), str(tmp_path / "out")
    words = ["convert", made, "--to", "knn-lm", "k=8", "--data", f"text={book}", "--out", out, "--seconds", "0"]
    assert run(words) == 0
    assert run(["evaluate", out, "--data", f"text={book}", "--bytes", "200", "--json"]) == 0
    fails(capsys, ["evaluate", out, "--data", f"text={book}", "--knn"], "which it always searches")
    train = ["train", "gpt", "--from", out, "--data", f"text={book}", "--steps", "1", "--out", str(tmp_path / "more")]
    fails(capsys, [*train, "--batch", "1", "--length", "8"], "all of its weights are frozen")
