"""`kinformer fill`."""

import json
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.decoding.fill_blanks import blank_probabilities, encode_blanks, fill_blanks
from tests.cli.folders import folder
from tests.cli.test_commands import fails


def test_blanks_are_shown_with_their_probabilities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, text = folder(tmp_path / "run", "bert"), r"the wh_le o_ \_"
    assert run(["fill", out, "--text", text, "--best", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    model = load(out)
    tokens = encode_blanks(text.encode(), list, model.mask)
    likely, indices = blank_probabilities(model, tokens).topk(3)
    assert [[candidate["token"] for candidate in row] for row in report["blanks"]] == indices.tolist()
    probabilities = torch.tensor([[candidate["probability"] for candidate in row] for row in report["blanks"]])
    torch.testing.assert_close(probabilities, likely)
    assert report["filled"] == bytes(fill_blanks(model, tokens).tolist()).decode(errors="replace")
    assert run(["fill", out, "--text", text]) == 0
    lines = capsys.readouterr().out.split("\n", 2)
    assert lines[0].startswith("gap 1: ") and lines[0].count(", ") >= 4 and lines[1].startswith("gap 2: ")


def test_what_cannot_be_filled_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, other = folder(tmp_path / "run", "bert"), folder(tmp_path / "gpt", "gpt")
    fails(capsys, ["fill", out, "--text", "the"], "there is no gap to fill in the text; write _ for each missing token")
    fails(capsys, ["fill", out, "--text", r"\_"], "there is no gap to fill in the text")
    fails(capsys, ["fill", out, "--text", ""], "there is no gap to fill in the text")
    fails(capsys, ["fill", out], "Missing option '--text'")
    fails(capsys, ["fill", out, "--text", "_", "--best", "0"], "--best")
    fails(
        capsys,
        ["fill", other, "--text", "_"],
        "this model does not fill in gaps of a text. Use a model of a member such as bert",
    )
    config = tmp_path / "gpt/config.json"
    saved = json.loads(config.read_text())
    config.write_text(json.dumps({**saved, "metric": {**saved["metric"], "name": "accuracy"}}))  # as on a task
    fails(
        capsys,
        ["fill", other, "--text", "_"],
        "this model does not fill in gaps of a text. Use a model of a member such as bert, or",
    )
    fails(capsys, ["fill", str(tmp_path / "none"), "--text", "_"], "there is no file or folder")
