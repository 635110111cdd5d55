"""The goldens' own helper: a comparison that lets nothing through, and an absence that nobody can overlook."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.parity.goldens import CHECKOUT, close, folder, load


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of goldens with one mechanism, `twice`, and two goldens in it."""
    monkeypatch.setenv("KINFORMER_GOLDENS", str(tmp_path))
    (tmp_path / "twice").mkdir()
    for name, size in (("small", 3), ("large", 5)):
        x = torch.arange(size, dtype=torch.float32) / 3
        tensors = {"x": x, "y": 2 * x, "rows": torch.arange(size), "keep": torch.ones(size, dtype=torch.bool)}
        save_file(tensors, tmp_path / "twice" / f"{name}.safetensors")
        record = {"hyperparameters": {"size": size}, "formula": "2x"}
        (tmp_path / "twice" / f"{name}.json").write_text(json.dumps(record))
    return tmp_path


def test_load_reads_every_golden_in_float64(shelf: Path) -> None:
    large, small = load("twice")
    assert (large.name, small.name, small.mechanism) == ("large", "small", "twice")
    assert small.hyperparameters == {"size": 3} and small.json["formula"] == "2x"
    kinds = {name: tensor.dtype for name, tensor in small.tensors.items()}
    assert kinds == {"x": torch.float64, "y": torch.float64, "rows": torch.int64, "keep": torch.bool}
    close(large.tensors["y"], 2 * large.tensors["x"])


def test_load_of_an_absent_mechanism_is_empty(shelf: Path) -> None:
    assert load("thrice") == []


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_half_a_golden_is_an_error(shelf: Path, suffix: str) -> None:
    (shelf / "twice" / f"small.{suffix}").unlink()
    with pytest.raises(ValueError, match="half is missing for .'small'"):
        load("twice")


def test_default_folder_is_beside_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINFORMER_GOLDENS", raising=False)
    assert folder() == CHECKOUT.parent / "shared" / "goldens"
    assert (CHECKOUT / "pyproject.toml").is_file()


def test_close_measures_in_units_of_the_largest_entry() -> None:
    theirs = torch.tensor([1000.0, 1.0], dtype=torch.float64)
    close(theirs + 0.9e-3, theirs)
    with pytest.raises(AssertionError, match="off by"):
        close(theirs + 1.1e-3, theirs)
    close(theirs / 1e9 + 0.9e-12, theirs / 1e9)
    with pytest.raises(AssertionError, match="off by"):
        close(theirs / 1e9 + 1.1e-12, theirs / 1e9)
    close(theirs + 0.09, theirs, tolerance=1e-4)


def test_close_against_zeros_is_absolute() -> None:
    zeros = torch.zeros(3, dtype=torch.float64)
    close(zeros + 0.9e-6, zeros)
    with pytest.raises(AssertionError, match="off by"):
        close(zeros + 1.1e-6, zeros)


def test_close_refuses_what_cannot_be_compared() -> None:
    x = torch.tensor([1.0, -torch.inf, 2.0], dtype=torch.float64)
    close(x.clone(), x)
    for ours, complaint in (
        (x[:, None], "shapes differ"),
        (x.float(), "want float64"),
        (x.nan_to_num(neginf=torch.nan), "NaN"),
        (x.abs(), "infinities"),
        (x.nan_to_num(neginf=0.0), "infinities"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            close(ours, x)
    with pytest.raises(AssertionError, match="nothing finite"):
        close(x[:0], x[:0])


PARITY_TEST = """
from tests.parity.goldens import Golden, close, goldens

@goldens("twice")
def test_twice(golden: Golden) -> None:
    close(FACTOR * golden.tensors["x"], golden.tensors["y"])

@goldens("thrice")
def test_thrice(golden: Golden) -> None:
    close(3 * golden.tensors["x"], golden.tensors["y"])
"""


def run(file: Path, ci: str, *options: str) -> tuple[int, list[str]]:
    """A pytest of its own over one file: exit code, and the lines that matter."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", "pyproject.toml"]
    env = os.environ | {"CI": ci}
    done = subprocess.run([*command, *options, str(file)], cwd=CHECKOUT, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.prove
def test_absence_is_told_and_fails_only_in_ci(shelf: Path, tmp_path: Path) -> None:
    file = tmp_path / "test_numbers.py"
    file.write_text(PARITY_TEST.replace("FACTOR", "2"))
    code, lines = run(file, "", "-n", "1")
    assert code == 0
    assert "goldens: 1 of 3 not checked: thrice" in lines
    code, lines = run(file, "true")
    assert code == 1
    assert "goldens: 1 of 3 not checked: thrice" in lines
    assert any("no goldens of thrice" in line for line in lines)


def test_a_wrong_number_fails(shelf: Path, tmp_path: Path) -> None:
    file = tmp_path / "test_numbers.py"
    file.write_text(PARITY_TEST.replace("FACTOR", "2.00001"))
    code, lines = run(file, "", "-k", "twice")
    assert code == 1
    assert "goldens: 2 checked" in lines
    assert any("2 failed" in line for line in lines)
