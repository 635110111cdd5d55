"""The command cost."""

import json

import pytest

from kinformer.cli.__main__ import run
from kinformer.lab.cost import cost
from kinformer.lab.cost.cost import StepMemory
from tests.cli.test_commands import fails


def test_costs_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "gpt", "d=16", "depth=2", "heads=2", "--batch", "2", "--length", "16", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["temporal_range"] is None and not report["memories"], "it reads a whole row"
    assert report["readers"] and all(sum(counts.values()) for counts in report["readers"].values())
    assert report["step_flops"] == 3 * report["flops"]


def test_bf16_keeps_smaller_activations_and_a_device_that_is_not_there_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["cost", "gpt", "d=32", "depth=1", "heads=2", "--batch", "2", "--length", "32"]
    reports = []
    for precision in ("float32", "bf16"):
        assert run([*words, "--precision", precision, "--device", "cpu", "--json"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
        assert reports[-1]["precision"] == precision and reports[-1]["device"] == "cpu"
    assert reports[1]["activations"] < reports[0]["activations"] and reports[0]["flops"] == reports[1]["flops"]
    fails(capsys, [*words, "--device", "cuda:99"], "there is no device 'cuda:99' on this machine, which has cpu")


def test_a_forecaster_s_windows_are_told_as_long_as_it_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["d=16", "heads=2", "hidden=16", "context=8", "label=4", "horizon=3"]
    assert run(["cost", "informer", *small, "--batch", "2"]) == 0
    assert "batches of 2 x (8 known + 3 forecast rows)" in capsys.readouterr().out


def test_the_range_and_the_scores_of_a_memory_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """(m + c m_cm) N before a segment, and L^2 + L (m + m_cm) scores of it."""
    monkeypatch.setattr(cost, "_memory", lambda *arguments: StepMemory(0, 0, 0, None))  # what is counted takes seconds
    monkeypatch.setattr(cost, "_flops", lambda *arguments: (0, 0))
    sizes = ["d=8", "depth=2", "heads=1", "segment=32", "memory=32", "compressed=16", "rate=2", "compression=mean"]
    words = ["cost", "compressive_transformer", *sizes, "--batch", "2", "--length", "64"]
    assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "temporal range  128 to 159 tokens back, depending on the position" in lines
    pairs = "32 x (32 + 32 of memory + 16 compressed) = 2,560 per segment and head (2 layers)"
    assert f"scores          {pairs}" in lines
    assert run([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["temporal_range"] == {"least": 128, "most": 159, "exact": True}
    memory = {"length": 32, "memory": 32, "compressed": 16, "searched": 0, "pairs": 2560}
    assert list(report["memories"].values()) == [memory, memory]
