"""`kinformer score`: log-probabilities of the lines of a file, and of their tokens."""

import json
import math
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers

import kinformer as kf
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.cli.__main__ import run
from kinformer.decoding.score import TokenScores
from tests.bridge.test_tokenizers import folder_with
from tests.cli.test_commands import fails

LINES = ["a cat", "the mat", "x"]


def test_lines_tokens_and_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = kf.gpt(d=16, depth=1, heads=2, length=32).eval()
    kf.save(model, tmp_path / "run")
    (tmp_path / "lines").write_text("\n\n".join(LINES) + "\n")
    words = ["score", f"{tmp_path}/run", "--texts", f"{tmp_path}/lines"]
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


def test_a_line_without_tokens_predicts_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = kf.gpt(d=16, depth=1, heads=2, length=32, vocab=2)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.tokenizer = Tokenizer(words.to_str())
    kf.save(model, tmp_path / "run")
    (tmp_path / "lines").write_text(" \na a\n")
    command = ["score", f"{tmp_path}/run", "--texts", f"{tmp_path}/lines"]
    assert run(command) == 0
    first, second, last = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert first == ["0.000", "0", "-", " "] and second[:3] == last[:3] and last[1] == "1"
    assert run([*command, "--json"]) == 0
    (empty, _) = json.loads(capsys.readouterr().out)["lines"]
    assert (empty["log_probability"], empty["predicted"], empty["tokens"]) == (0, 0, [])


@pytest.mark.parametrize(("value", "total"), [(-2000.0, -2000), (-math.inf, None)])
def test_an_infinite_perplexity_is_null_in_json(
    value: float,
    total: float | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = TokenScores(torch.tensor([97, 98]), torch.tensor([math.nan, value]), torch.tensor([False, False]))
    monkeypatch.setattr("kinformer.decoding.score.score", lambda *arguments, **options: [scores])
    kf.save(kf.gpt(d=16, depth=1, heads=2), tmp_path / "run")
    (tmp_path / "lines").write_text("ab\n")
    command = ["score", f"{tmp_path}/run", "--texts", f"{tmp_path}/lines"]
    assert run(command) == 0
    assert [line.split("\t")[:3] for line in capsys.readouterr().out.splitlines()] == [[f"{value:.3f}", "1", "inf"]] * 2
    assert run([*command, "--json"]) == 0
    text = capsys.readouterr().out
    report = json.loads(text)
    assert (report["log_probability"], report["perplexity"]) == (total, None)
    assert "Infinity" not in text and "NaN" not in text


def test_a_model_of_another_library_reads_its_begin_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_with(tmp_path / "llama", "")
    peer = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "llama")
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "llama")("the cat", return_tensors="pt").input_ids
    assert ids[0, 0] == 0  # <s>
    expected = -peer(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
    (tmp_path / "lines").write_text("the cat\n")
    capsys.readouterr()
    assert run(["score", f"{tmp_path}/llama", "--texts", f"{tmp_path}/lines", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["log_probability"] == pytest.approx(expected, rel=1e-4)
    assert report["predicted"] == ids.shape[1] - 1


def test_what_cannot_be_scored_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, model in (("bert", kf.bert(d=16, depth=1, heads=2)), ("gpt", kf.gpt(d=16, depth=1, heads=2))):
        kf.save(model, tmp_path / name)
    (tmp_path / "lines").write_text("a\n")
    (tmp_path / "empty").write_text("\n")
    fails(
        capsys, ["score", f"{tmp_path}/bert", "--texts", f"{tmp_path}/lines"], "score needs a model that predicts the"
    )
    fails(
        capsys, ["score", f"{tmp_path}/gpt", "--texts", f"{tmp_path}/empty"], "empty is empty; write one text per line"
    )
    fails(
        capsys,
        ["score", f"{tmp_path}/gpt", "--texts", f"{tmp_path}/none"],
        "--texts must name a file with one text per",
    )
