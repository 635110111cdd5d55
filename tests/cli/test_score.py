"""`kinformer score`: log-probabilities of the lines of a file, and of their tokens."""

import json
import math
from pathlib import Path

import pytest
import torch

import kinformer as kf
from kinformer.cli.__main__ import run
from tests.cli.test_commands import fails

LINES = ["a cat", "the mat", "x"]


def test_lines_tokens_and_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = kf.gpt(d=16, depth=1, heads=2, length=32).eval()
    kf.save(model, tmp_path / "run")
    (tmp_path / "lines").write_text("\n\n".join(LINES) + "\n")
    words = ["score", f"{tmp_path}/run", "--text", f"{tmp_path}/lines"]
    tokens = [torch.tensor([list(line.encode())]) for line in LINES]
    values = [model.logits(row).y.log_softmax(-1)[0, :-1].gather(-1, row[0, 1:, None])[:, 0].tolist() for row in tokens]
    assert run(words) == 0
    table = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[3] for row in table] == [*LINES, "all 3 lines"]
    assert [float(row[0]) for row in table] == pytest.approx([*map(sum, values), sum(map(sum, values))], abs=2e-3)
    assert [row[1] for row in table] == ["4", "6", "0", "10"]
    assert float(table[-1][2]) == pytest.approx(math.exp(-sum(map(sum, values)) / 10), rel=1e-3) and table[2][2] == "-"
    assert run([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = [[token["log_probability"] for token in line["tokens"]] for line in report["lines"]]
    assert [row[0] for row in found] == [None] * 3
    for row, expected in zip(found, values, strict=True):
        assert row[1:] == pytest.approx(expected, abs=1e-4)
    assert run([*words, "--tokens"]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [f"{'':>12}  'a'", f"{values[0][0]:>12.3f}  ' '"]


def test_what_cannot_be_scored_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, model in (("bert", kf.bert(d=16, depth=1, heads=2)), ("gpt", kf.gpt(d=16, depth=1, heads=2))):
        kf.save(model, tmp_path / name)
    (tmp_path / "lines").write_text("a\n")
    (tmp_path / "empty").write_text("\n")
    fails(capsys, ["score", f"{tmp_path}/bert", "--text", f"{tmp_path}/lines"], "score needs a model that predicts the")
    fails(
        capsys, ["score", f"{tmp_path}/gpt", "--text", f"{tmp_path}/empty"], "empty is empty; write one text per line"
    )
    fails(
        capsys, ["score", f"{tmp_path}/gpt", "--text", f"{tmp_path}/none"], "--text must name a file with one text per"
    )
