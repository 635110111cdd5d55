"""Goldens: inputs, weights and outputs of other people's implementations, as float64 tensors.

A golden is a pair of files, `$KINFORMER_GOLDENS/<mechanism>/NAME.json` and `NAME.safetensors`. A parity test takes
every golden of its mechanism, reads sizes and flags from it, and compares what the part computes:

    @goldens("rope")
    def test_rope(golden: Golden) -> None:
        ours = ...
        close(ours, golden.tensors["q_half"])

Where the folder is absent the test is reported as not checked; with CI=true that is a failure.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, eq=False)
class Golden:
    """One recorded run. Real tensors are float64; integer and boolean ones are as stored."""

    mechanism: str
    name: str
    hyperparameters: dict[str, Any] = field(repr=False)
    tensors: dict[str, Tensor] = field(repr=False)
    json: dict[str, Any] = field(repr=False)


def folder() -> Path:
    """Where the goldens are: $KINFORMER_GOLDENS, or shared/goldens beside the checkout."""
    return Path(os.environ.get("KINFORMER_GOLDENS") or CHECKOUT.parent / "shared" / "goldens")


def load(mechanism: str) -> list[Golden]:
    """Every golden of a mechanism, by name; an empty list where there is none. Half a pair is an error."""
    directory = folder() / mechanism
    described = {path.stem for path in directory.glob("*.json")}
    stored = {path.stem for path in directory.glob("*.safetensors")}
    if described != stored:
        half = sorted(described ^ stored)
        raise ValueError(
            f"goldens in {directory}: each needs NAME.json and NAME.safetensors, half is missing for {half}"
        )
    return [_read(directory, name) for name in sorted(described)]


def _read(directory: Path, name: str) -> Golden:
    record = json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
    tensors = {key: _widen(value) for key, value in load_file(directory / f"{name}.safetensors").items()}
    return Golden(directory.name, name, record["hyperparameters"], tensors, record)


def _widen(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def goldens(mechanism: str) -> pytest.MarkDecorator:
    """Parametrizes a test's argument `golden` over every golden of a mechanism."""
    loaded = load(mechanism)
    if not loaded:
        absent = pytest.param(None, id="absent", marks=pytest.mark.golden(mechanism, None))
        return pytest.mark.parametrize("golden", [absent])
    params = [pytest.param(g, id=g.name, marks=pytest.mark.golden(mechanism, g.name)) for g in loaded]
    return pytest.mark.parametrize("golden", params)


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-6) -> None:
    """Asserts that no entry of `ours` is further from `theirs` than `tolerance` times the largest entry of `theirs`.

    Both must be float64 and of one shape. Infinities must stand in the same places with the same sign; NaN is an error.
    """
    assert ours.shape == theirs.shape, f"shapes differ: ours {tuple(ours.shape)}, theirs {tuple(theirs.shape)}"
    assert ours.dtype == theirs.dtype == torch.float64, f"want float64, got ours {ours.dtype}, theirs {theirs.dtype}"
    assert not (ours.isnan().any() or theirs.isnan().any()), "NaN among the values compared"
    infinite = ours.isinf() | theirs.isinf()
    assert torch.equal(ours[infinite], theirs[infinite]), "infinities stand in different places"
    ours, theirs = ours[~infinite], theirs[~infinite]
    assert theirs.numel(), "nothing finite to compare"
    scale = theirs.abs().max().item() or 1.0
    error = (ours - theirs).abs().max().item()
    assert error <= tolerance * scale, f"off by {error:.3e}; {tolerance:.0e} of the scale {scale:.3e} is allowed"
