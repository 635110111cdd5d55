"""compile=True: a program of the model is trained in its place, to the same losses, saved and resumed as ever."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.lab.train.fit import fit
from kinformer.lab.train.history import History
from tests.lab.train import tiny
from tests.lab.train.runs import lines

GIVEN: dict[str, Any] = {"batch": 3, "length": 12, "lr": 1e-3, "valid_bytes": 60, "measures": 1}


def trained(model: Any, steps: int, **settings: Any) -> History:
    return fit(model, tiny.text(400), steps=steps, **GIVEN, **settings)


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in lines(folder) if "step" in line]


def compared(make: Any, folder: Path) -> None:
    """Four steps of a program and two more after a stop, beside six steps of the model."""
    for name, options in (("plain", {}), ("compiled", {"compile": True})):
        for steps in (4, 6):
            torch.manual_seed(0)
            trained(make(), steps, out=folder / name, resume=steps > 4, **options)
    assert losses(folder / "compiled") == pytest.approx(losses(folder / "plain"), abs=1e-4)


def test_a_program_of_the_model_is_trained_as_the_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is caught; the code that the compiler makes of it is left to the longer test."""
    original, models = torch.compile, list[Any]()
    monkeypatch.setattr(torch, "compile", lambda model: models.append(model) or original(model, backend="eager"))
    compared(tiny.lane, tmp_path)
    assert len(models) == 2 and all(isinstance(model, tiny.Lane) for model in models)
    assert int(load(tmp_path / "compiled", tiny.lane).seen) == 6  # what follows a step is told to the model itself


@pytest.mark.prove
def test_the_compiler_s_code_trains_as_the_model_does(tmp_path: Path) -> None:
    """In a process of its own: what checks annotations in tests is no code that can be compiled."""
    (tmp_path / "text").write_bytes(b"abcdefgh" * 100)
    member = ["gpt", "d=16", "depth=1", "heads=2", "length=12", "--batch", "3", "--length", "12", "--steps", "4"]
    words = [sys.executable, "-m", "kinformer", "train", *member, "--data", f"text={tmp_path}/text"]
    for name, options in (("plain", []), ("compiled", ["--compile"])):
        subprocess.run([*words, "--out", str(tmp_path / name), *options], check=True, capture_output=True)
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), abs=1e-4)
