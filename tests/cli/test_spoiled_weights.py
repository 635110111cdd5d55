"""Weights that are no numbers, or give none: whatever is asked of them ends in one line."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load, save
from kinformer.members.informer import TINY
from tests.cli.folders import SMALL, folder
from tests.cli.test_commands import fails
from tests.cli.test_forecast import a_series

LOOSE = ["--samples", "6", "--delta", "0.7", "--epsilon", "0.2", "--tokens", "2", "--length", "4"]
NONE = "are NaN: the weights are damaged"


def spoilt(path: Path, name: str, number: float, **keywords: Any) -> str:
    folder(path, name, **keywords)
    model = load(path)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(number)
    save(model, path)
    return str(path)


@pytest.fixture
def text(tmp_path: Path) -> list[str]:
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 40)
    return ["--data", f"text={tmp_path}/text", "--bytes", "40", "--length", "8"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused_by_all(
    number: float, tmp_path: Path, text: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    calm = spoilt(tmp_path / "calm", "calm", number, depth=2, length=32)
    for words in (
        ["calibrate", calm, *text[:2], *LOOSE],
        ["generate", calm, "--prompt", "a", "--tokens", "2"],
        ["evaluate", calm, *text],
        ["read", calm, str(tmp_path / "text"), "--save", str(tmp_path / "kept")],
    ):
        fails(capsys, words, "are damaged: ")
    assert not (tmp_path / "calm" / "exits.json").exists() and not (tmp_path / "kept").exists()


def test_what_is_no_number_is_neither_written_nor_measured(
    tmp_path: Path, text: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    gpt, bert = (spoilt(tmp_path / name, name, 1e38, length=32) for name in ("gpt", "bert"))
    for options in ([], ["--temperature", "0", "--json"], ["--beam", "2"]):
        fails(capsys, ["generate", gpt, "--prompt", "a", "--tokens", "2", *options], NONE)
    fails(capsys, ["evaluate", gpt, *text], "bits per byte is nan on ")
    fails(capsys, ["fill", bert, "--text", "a_c"], NONE)
    calm = spoilt(tmp_path / "calm", "calm", 1e38, depth=2, length=32)
    fails(capsys, ["calibrate", calm, *text[:2], *LOOSE], NONE)


@pytest.mark.parametrize("name", ["o.csv", "o.png"])
def test_a_forecast_of_no_numbers_is_none(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {key: value for key, value in TINY.items() if key not in SMALL}
    run_folder = spoilt(tmp_path / "run", "informer", 1e38, **{**sizes, "calendar": 5})
    words = ["forecast", run_folder, "--data", a_series(tmp_path / "a.csv"), "--out", str(tmp_path / name)]
    fails(capsys, words, "the model's forecast is not finite")
    assert not (tmp_path / name).exists()


def test_a_training_that_ends_in_no_number_is_not_done(
    tmp_path: Path, text: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--steps", "1", "--batch", "2", "--length", "8", "--lr", "1e30", "--out", str(tmp_path / "out")]
    fails(capsys, ["train", "gpt", "d=8", "depth=1", "heads=2", *text[:2], *small], "on validation data became nan", 1)
    fails(capsys, ["compare", "gpt(d=8, depth=1, heads=2)", *text[:2], *small], "on validation data became nan", 1)
