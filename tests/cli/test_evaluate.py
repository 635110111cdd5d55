"""`kinformer evaluate`: the training's own number, longer memories, and one line for what is wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import save
from kinformer.cli.__main__ import run
from kinformer.cli.support.evaluation import is_same_data
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.data.text import read
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.history import History
from kinformer.members.adaptive_span import adaptive_span
from kinformer.members.bert_classifier import bert_classifier
from kinformer.members.gpt import gpt
from kinformer.members.transformer_xl import transformer_xl
from tests.cli.test_commands import fails

SMALL = {"d": 16, "depth": 1, "heads": 2}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(b"the cat sat on the mat. " * 200)
    return path


def number(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["evaluate", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["gpt", "transformer_xl", "bert"])
def test_it_is_the_number_of_the_training(
    name: str, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One measurement, at the end: of the same bytes, and of the same weights."""
    out = tmp_path / "run"
    words = ["train", name, *(f"{key}={value}" for key, value in SMALL.items()), "--data", f"text={text}"]
    assert run([*words, "--out", str(out), "--steps", "2", "--batch", "2", "--length", "8"]) == 0
    point = History.read(out).points[-1]
    report = number(capsys, out, "--data", f"text={text}", "--split", "valid")
    assert report["value"] == pytest.approx(point.valid, rel=1e-6)
    assert report["metric"]["name"] == ("bits per masked byte" if name == "bert" else "bits per byte")
    assert report["perplexity"] == pytest.approx(2 ** report["value"]) and report["length"] == 8


def test_what_reads_ahead_at_the_length_it_is_measured_at_is_warned_of(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", "reformer", "d=16", "depth=2", "heads=2", "chunk=16", "--data", f"text={text}", "--out", str(out)]
    warning = "warning: this reformer reads ahead, as its part declares: "
    assert run([*words, "--steps", "1", "--batch", "2", "--length", "100"]) == 0
    assert capsys.readouterr().err.count(warning) == 1
    for length, count in ((24, 0), (100, 1)):
        assert run(["evaluate", str(out), "--data", f"text={text}", "--length", str(length), "--split", "all"]) == 0
        assert capsys.readouterr().err.count(warning) == count


def test_pairs_are_measured_as_in_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs, out = tmp_path / "pairs.tsv", tmp_path / "run"
    pairs.write_text("".join(f"{n}\t{n + 1}\n" for n in range(60)))
    words = ["train", "transformer", *(f"{key}={value}" for key, value in SMALL.items()), "--data", f"pairs={pairs}"]
    assert run([*words, "--out", str(out), "--steps", "2", "--batch", "2", "--length", "8"]) == 0
    point = History.read(out).points[-1]
    report = number(capsys, out, "--data", f"pairs={pairs}", "--split", "valid", "--length", "8")
    assert report["value"] == pytest.approx(point.valid, rel=1e-6) and report["metric"]["name"] == "bits per token"
    assert number(capsys, out, "--data", f"pairs={pairs}")["count"] > 0
    fails(
        capsys,
        ["evaluate", str(out), "--data", f"pairs={pairs}", "--stride", "2"],
        "--stride, --full and --lanes have no effect on pairs=",
    )
    fails(capsys, ["evaluate", str(out), "--data", f"text={pairs}"], "this transformer reads pairs, but got a text")


def test_windows_lanes_and_the_first_bytes(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model, data = gpt(**SMALL, position="rotary").eval(), read(str(text))
    save(model, tmp_path / "run")
    base = (tmp_path / "run", "--data", f"text={text}", "--length", 16)
    report = number(capsys, *base, "--stride", 4, "--bytes", 100)
    assert (report["value"], report["count"]) == (evaluate(model, data.test, 16, 100, stride=4).value, 99)
    assert number(capsys, *base, "--lanes", 3)["value"] == evaluate(model, data.test, 16, lanes=3).value
    assert run(["evaluate", *map(str, base)]) == 0
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title == f"{base[0]}: gpt on text={text}" and head.split() == ["test"]
    table = {line.split("  ")[1]: line.split() for line in rows}
    assert table["bits per byte"][3:] == [f"{evaluate(model, data.test, 16).value:.4f}", "lower", "is", "better"]
    assert table["perplexity"][0] == "perplexity" and table["predictions"][-1] == "239"
    assert table["bytes"] == ["bytes", "240", "train,", "valid", "and", "test", "have", "4,800"]


def test_every_split_at_once_is_each_by_itself(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(gpt(**SMALL), tmp_path / "run")
    base = (tmp_path / "run", "--data", f"text={text}", "--length", 16, "--bytes", 300)
    report = number(capsys, *base, "--split", "all")
    assert list(report["splits"]) == ["train", "valid", "test"] and "value" not in report
    for name, own_report in report["splits"].items():
        alone = number(capsys, *base, "--split", name)
        assert {**own_report, "seconds": 0} == {key: alone[key] for key in own_report} | {"seconds": 0}
    assert run(["evaluate", *map(str, base), "--split", "all"]) == 0
    _, head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["train", "valid", "test"]
    values = [f"{own_report['value']:.4f}" for own_report in report["splits"].values()]
    assert first.split() == ["bits", "per", "byte", *values, "lower", "is", "better"]
    ends = [match.end() for match in re.finditer(r"\d\.\d{4}", first)]
    assert ends == [head.index(name) + len(name) for name in report["splits"]]  # numbers stand under their split
    (tmp_path / "other").write_bytes(b"the cat sat. " * 40)
    watched = number(capsys, *base[:2], f"text={text},valid={tmp_path}/other", *base[3:], "--split", "all")
    assert list(watched["splits"]) == ["train", "valid"]  # nothing is kept for the end then


def test_bytes_of_a_text_lie_all_over_a_split(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinformer.lab.data.support.split_tokens.SHORTEST", 20)
    model, test = gpt(**SMALL), read(str(text)).test
    save(model, tmp_path / "run")
    base = (tmp_path / "run", "--data", f"text={text}", "--length", 8, "--bytes", 60)
    at = [0, 100, 200]  # 5 and 10 of the 12 stretches: of n times the golden ratio the fraction is least there
    begins, tokens = torch.tensor([0, 20, 40]), torch.cat([test[place : place + 20] for place in at])
    spread, first = number(capsys, *base), number(capsys, *base, "--lanes", 2)
    assert spread["value"] == evaluate(model.eval(), SplitTokens(tokens, begins), 8).value
    assert first["value"] == evaluate(model.eval(), test[:60], 8, lanes=2).value
    assert spread["measured"] == "60 bytes in 3 pieces, spread over test"
    assert first["measured"] == "the first 60 bytes of test"
    assert run(["evaluate", *map(str, base)]) == 0
    assert capsys.readouterr().out.endswith(f" train, valid and test have 4,800\n  measured on {spread['measured']}\n")


def test_a_memory_is_longer_than_in_training(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = read(str(text))
    torch.manual_seed(0)
    save(transformer_xl(**SMALL, segment=4, memory=4), tmp_path / "run")
    torch.manual_seed(0)
    longer = transformer_xl(**SMALL, segment=4, memory=32)
    words = (tmp_path / "run", "--data", f"text={text}", "--length", 8)
    before = number(capsys, *words)
    report = number(capsys, *words[:1], "memory=32", *words[1:])
    assert report["value"] == evaluate(longer, data.test, 8).value != before["value"]
    assert (report["keywords"]["memory"], before["keywords"]["memory"]) == (32, 4)
    message = "the trained weights do not fit d=32, because these keywords change the shapes of weights. Leave them out"
    fails(capsys, ["evaluate", str(words[0]), "d=32", "--data", f"text={text}"], message)
    fails(capsys, ["evaluate", str(words[0]), "memry=3", "--data", f"text={text}"], "the nearest is 'memory'")
    fails(capsys, ["evaluate", str(words[0]), "memory=-3", "--data", f"text={text}"], "memory")


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    save(gpt(**SMALL, length=32), out)
    data = ["--data", f"text={text}"]
    (tmp_path / "short").write_bytes(b"abc")
    wrong: list[tuple[list[str], str]] = [
        ([str(tmp_path / "none"), *data], "there is no file or folder"),
        ([str(text), *data], "is a file, but a model is a folder"),
        ([out], "Missing option '--data'"),
        ([out, "--data", "text=/none"], "there is no file or folder /none"),
        ([out, "--data", f"text={tmp_path}/short"], "the test split of text="),
        ([out, *data, "--split", "tset"], "'tset' is not one of"),
        ([out, *data, "--stride", "999"], "wrong stride for windows of 128: got 999, expected 1 to 128"),
        ([out, *data, "--lanes", "2", "--stride", "2"], "give one of stride and lanes"),
        ([out, *data, "--lanes", "1"], "but this model has only 32 learned positions"),
        ([out, *data, "--device", "gpu"], "there is no device 'gpu' on this machine"),
        ([out, *data, "--length", "0"], "--length"),
        ([out, *data, "depth"], "'depth' is not a keyword; write name=value"),
    ]
    for words, message in wrong:
        fails(capsys, ["evaluate", *words], message)


def test_spans_that_heads_have_learned_are_told_and_drawn(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, out = adaptive_span(d=16, depth=2, heads=2, segment=8, longest=20, ramp=4), tmp_path / "run"
    spans = [[0.1, 0.55], [0.9, 1.0]]
    with torch.no_grad():
        for block, shares in zip(model.body.layers, spans, strict=True):
            block.layers[0].mechanism.mask.span.copy_(torch.tensor(shares))
            block.layers[0].mechanism.mask.look()
    save(model, out)
    base = (out, "--data", f"text={text}", "--length", 16, "--bytes", 120)
    heads = number(capsys, *base)["heads"]
    assert list(heads) == ["span"] and heads["span"]["unit"] == "positions"
    assert list(heads["span"]["layers"].values()) == [pytest.approx([20 * z for z in layer]) for layer in spans]
    splits = number(capsys, *base, "--split", "all")["splits"]
    assert splits["train"]["heads"] == splits["test"]["heads"] == heads
    picture = tmp_path / "spans.png"
    assert run(["evaluate", *map(str, base), "--out", str(picture)]) == 0
    table = capsys.readouterr().out.partition("of test\n")[2].splitlines()
    assert [line.split() for line in table] == [
        ["span", "of", "each", "head,", "positions"],
        ["layer", "head", "1", "head", "2"],
        ["1", "2", "11"],
        ["2", "18", "20"],
    ]
    assert picture.stat().st_size > 5_000
    save(gpt(**SMALL), tmp_path / "gpt")
    assert "heads" not in number(capsys, tmp_path / "gpt", *base[1:])
    fails(
        capsys,
        ["evaluate", str(tmp_path / "gpt"), *map(str, base[1:]), "--out", "x.png"],
        "--out cannot draw this gpt: its attention heads learn",
    )
    fails(capsys, ["evaluate", *map(str, base), "--out", "x.txt"], "expected a name that ends with .png, .svg or .pdf")
    fails(capsys, ["evaluate", *map(str, base), "--out", str(tmp_path / "no" / "x.png")], "there is no file or folder")


def test_a_held_out_file_is_measured_as_a_whole(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = gpt(**SMALL, length=64).eval()
    model.trained_length, model.trained_on = 64, "text=other"
    save(model, tmp_path / "run")
    note = "is not the training data, but only its test split is measured; --split whole measures all of it"
    assert number(capsys, tmp_path / "run", "--data", f"text={text}")["count"] < 300
    assert run(["evaluate", f"{tmp_path}/run", "--data", f"text={text}"]) == 0 and note in capsys.readouterr().err
    whole = number(capsys, tmp_path / "run", "--data", f"text={text}", "--split", "whole")
    assert whole["count"] == len(text.read_bytes()) - 1
    assert whole["value"] == pytest.approx(evaluate(model, torch.tensor(list(text.read_bytes())), 64).value)
    part = number(capsys, tmp_path / "run", "--data", f"text={text}", "--split", "whole", "--bytes", "50")
    assert part["measured"] == "the first 50 bytes of the whole text"
    assert run(["evaluate", f"{tmp_path}/run", "--data", f"text={text}", "--split", "whole"]) == 0
    said = capsys.readouterr()
    assert "whole" in said.out.splitlines()[1] and said.err == "" and "train, valid" not in said.out
    words = ["evaluate", f"{tmp_path}/run", "--data"]
    fails(capsys, [*words, f"text={text}", "--valid", "held"], "use --split instead: whole measures all of")
    fails(capsys, [*words, f"text={text},valid={text}", "--split", "whole"], "has splits of its own")


def test_the_training_data_is_known_by_every_path(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gpt(**SMALL, length=64).eval()
    model.trained_length, model.trained_on = 64, f"text={text.resolve()}"
    save(model, tmp_path / "run")
    other, link = tmp_path / "other text", tmp_path / "link"
    other.write_bytes(text.read_bytes())
    link.symlink_to(text)
    monkeypatch.chdir(text.parent)
    for place, is_noted in ((text, False), (text.name, False), (f"./{text.name}", False), (link, False), (other, True)):
        assert run(["evaluate", f"{tmp_path}/run", "--data", f"text={place}"]) == 0
        assert ("is not the training data" in capsys.readouterr().err) == is_noted, place


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        ("text=doc.txt", "text={here}/doc.txt", True),
        ("text={here}/doc.txt", "text=doc.txt", True),
        ("pairs={here}/sub/a.tsv,valid=b.tsv", "pairs=sub/a.tsv", True),
        ("images={here}/sub", "images=sub/", True),
        ("labelled=doc.txt", "text=doc.txt", False),
        ("text={here}/doc.txt", "text={here}/sub/doc.txt", False),
        ("text={here}/sub/doc.txt", "text=doc.txt", False),
        ("text=sub/doc.txt", "text={here}/doc.txt", False),
        ("text=../doc.txt", "text=/elsewhere/doc.txt", True),  # its folder is unknown
        ("text=stdlib", "text=stdlib", True),
        ("text=stdlib", "text=doc.txt", False),
        ("text=~/doc.txt", "text={home}/doc.txt", True),
    ],
)
def test_names_of_data_are_compared_by_their_files(
    before: str, now: str, is_same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"here": tmp_path, "home": Path.home()}
    assert is_same_data(before.format(**places), now.format(**places)) == is_same


def test_labelled_texts_are_measured_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("".join(f"{'ab'[n % 2]}\ttext {n}\n" for n in range(40)))
    model = bert_classifier(**SMALL, length=64).eval()
    model.trained_length, model.labels = 64, ("a", "b")
    save(model, tmp_path / "run")
    report = number(capsys, tmp_path / "run", "--data", f"labelled={rows}", "--split", "whole")
    assert report["count"] == 40 and capsys.readouterr().err == ""
