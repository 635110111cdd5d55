"""`kinformer classify`: the labels of a trained classifier, for a text or for the lines of a file."""

import json
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import save
from kinformer.cli.__main__ import run
from kinformer.decoding.label_texts import label_probabilities
from kinformer.members.bert_classifier import bert_classifier
from kinformer.members.camtl import camtl
from kinformer.models.classifier import Classifier
from tests.cli.folders import folder
from tests.cli.test_commands import fails

TEXTS = [b"a fine film", b"a dull film, and long", b"fine"]


def probabilities(model: Classifier, text: bytes) -> list[float]:
    return model.scores(torch.tensor([list(text)]))[0].softmax(-1).tolist()


@pytest.fixture
def classifier(tmp_path: Path) -> Classifier:
    torch.manual_seed(0)
    model = bert_classifier(d=16, depth=1, heads=2, classes=3, length=64).eval()
    model.labels = ("bad", "good", "other")
    with torch.no_grad():
        model.head.weight.mul_(20)  # answers that differ
    save(model, tmp_path / "run")
    return model


def test_all_labels_of_a_text_and_the_likeliest_of_each_line(
    classifier: Classifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [dict(zip(("bad", "good", "other"), probabilities(classifier, text), strict=True)) for text in TEXTS]
    assert run(["classify", f"{tmp_path}/run", "--text", TEXTS[0].decode()]) == 0
    ranked = sorted(expected[0].items(), key=lambda pair: -pair[1])
    assert capsys.readouterr().out == ", ".join(f"{name} {p:.3f}" for name, p in ranked) + "\n"
    (tmp_path / "lines").write_bytes(b"\n".join(TEXTS) + b"\n")
    assert run(["classify", f"{tmp_path}/run", "--texts", f"{tmp_path}/lines"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    best = [max(labels.items(), key=lambda pair: pair[1]) for labels in expected]
    assert lines == [[name, f"{p:.3f}", text.decode()] for (name, p), text in zip(best, TEXTS, strict=True)]
    assert run(["classify", f"{tmp_path}/run", "--texts", f"{tmp_path}/lines", "--best", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["texts"]
    assert [row["text"] for row in report] == [text.decode() for text in TEXTS]
    for row, labels in zip(report, expected, strict=True):
        assert row["labels"] == pytest.approx(labels) and sum(row["labels"].values()) == pytest.approx(1)


def test_every_task_answers_with_its_own_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = camtl(d=16, depth=2, heads=2, classes=(2, 3), length=64)
    model.labels = ("mood: bad", "mood: good", "kind: film", "kind: book", "kind: song")
    save(model, tmp_path / "run")
    for task, names in enumerate((["bad", "good"], ["film", "book", "song"])):
        labels = label_probabilities(model, torch.tensor(list(b"a film")), task)
        assert list(labels) == names and sum(labels.values()) == pytest.approx(1)
    assert run(["classify", f"{tmp_path}/run", "--text", "a film"]) == 0
    assert [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines()] == ["mood", "kind"]
    assert run(["classify", f"{tmp_path}/run", "--text", "a film", "--task", "kind", "--best", "1"]) == 0
    assert capsys.readouterr().out.startswith("kind: ")
    fails(
        capsys, ["classify", f"{tmp_path}/run", "--text", "a", "--task", "kin"], "no task 'kin'; the nearest is 'kind'"
    )


def test_what_is_wrong_is_said_in_one_line(
    classifier: Classifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"{tmp_path}/run"
    (tmp_path / "lines").write_bytes(b"a\n\nb\n")
    for words, message in (
        ([], "give one of --text TEXT and --texts FILE"),
        (["--text", "a", "--texts", "b"], "give one of --text TEXT and --texts FILE"),
        (["--text", "a", "--task", "mood"], "--task has no effect on a model of one task"),
        (["--texts", f"{tmp_path}/none"], "--texts must name a file with one text per line"),
        (["--texts", f"{tmp_path}/lines"], "line 2 of "),
        (["--text", "a" * 65], "64"),
        (["--text", ""], "the text is empty; give --text at least one character"),
    ):
        fails(capsys, ["classify", where, *words], message)
    with pytest.raises(ValueError, match="cannot label a text without tokens"):
        label_probabilities(classifier, torch.tensor([], dtype=torch.long))
    gpt = folder(tmp_path / "gpt", "gpt", length=16)
    fails(capsys, ["classify", gpt, "--text", "a"], "this model reads text data and labels no texts")
    fails(capsys, ["generate", where, "--prompt", "a"], "label texts with `kinformer classify DIR --text")
