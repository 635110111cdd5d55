"""The command cost."""

import json

import pytest

from kinformer.cli.__main__ import run


def test_costs_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "gpt", "d=16", "depth=2", "heads=2", "--batch", "2", "--length", "16", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["readers"] and all(sum(counts.values()) for counts in told["readers"].values())
    assert told["step_flops"] == 3 * told["flops"]


def test_a_forecaster_s_windows_are_told_as_long_as_it_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["d=16", "heads=2", "hidden=16", "context=8", "label=4", "horizon=3"]
    assert run(["cost", "informer", *small, "--batch", "2", "--length", "64"]) == 0
    assert "batches of 2 x 8 known rows and 3 that come" in capsys.readouterr().out
