"""Classifier: what it reads of a row by either pooling, that it learns what rows are, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.cli.__main__ import run
from kinformer.core.mechanism import NoState
from kinformer.lab.train.fit import fit
from kinformer.members.bert_classifier import bert_classifier
from kinformer.models.classifier import Classifier
from kinformer.nn.blocks.mab import MAB
from kinformer.nn.poolers.cls import CLSPooler
from kinformer.nn.poolers.mean import MeanPooler
from kinformer.nn.poolers.pma import PMA

SMALL = {"d": 16, "depth": 1, "heads": 2, "length": 24}
PADDED = torch.tensor([[-1, -1, 3, 4, 5], [6, 7, 8, -1, -1], [1, 2, 3, 4, 5]])


def written(folder: Path, labels: str = "abc", name: str = "rows.tsv") -> str:
    """A row is of the kind of its letters, which stand anywhere among others."""
    lines = [f"{labels[n % len(labels)]}\t{n}{labels[n % len(labels)] * (2 + n % 5)}{n // 3}" for n in range(200)]
    (folder / name).write_text("\n".join(lines))
    return f"labelled={folder / name}"


def test_the_mean_is_over_real_tokens_alone() -> None:
    y = torch.randn(3, 5, 4)
    means = MeanPooler()(y, PADDED >= 0)
    for row, mean in enumerate(means):
        torch.testing.assert_close(mean, y[row][PADDED[row] >= 0].mean(0))


def test_a_row_begins_with_the_model_s_own_token_behind_padding() -> None:
    pooling = CLSPooler(4)
    rows = pooling.rows(PADDED, mark=9)
    assert rows.tolist() == [[-1, -1, 9, 3, 4, 5], [9, 6, 7, 8, -1, -1], [9, 1, 2, 3, 4, 5]]
    y = torch.randn(3, 6, 4)
    picked = torch.stack([y[0, 2], y[1, 0], y[2, 0]])
    torch.testing.assert_close(pooling(y, rows >= 0), pooling.dense(picked).tanh())


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_it_learns_what_rows_are_and_reads_as_many_tokens_as_it_says(pool: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = bert_classifier(**SMALL, classes=3, pool=pool)
    assert model.longest == 24 and model.scores(torch.zeros(1, 24, dtype=torch.long)).shape == (1, 3)
    history = fit(model, written(tmp_path), steps=60, batch=16, length=24, lr=3e-3, out=tmp_path / "run")
    assert history.metric.name == "accuracy" and history.best.valid > 0.8
    loaded = load(tmp_path / "run")
    assert isinstance(loaded, Classifier) and loaded.labels == ("a", "b", "c")
    predicted = loaded.scores(torch.tensor([list(b"77ccccc12")])).argmax(-1)
    assert loaded.labels[int(predicted)] == "c"


def test_a_pooling_of_several_vectors_is_read_whole() -> None:
    body = MAB(16, 2, cross=False)
    model = Classifier(11, 16, body, classes=3, pooling=PMA(MAB(16, 2), 2)).eval()
    assert model.head.in_features == 32 and model.scores(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 3)


def test_padding_changes_nothing(float64: None) -> None:
    for pool in ("mean", "first"):
        model = bert_classifier(**SMALL, pool=pool).eval()
        whole = [model.scores(row[row >= 0][None]) for row in PADDED]
        torch.testing.assert_close(model.scores(PADDED), torch.cat(whole))


def test_the_loss_is_the_mean_over_rows_of_what_their_class_costs(float64: None) -> None:
    model = bert_classifier(**SMALL, classes=3).eval()
    costs = -model.scores(PADDED).log_softmax(-1)
    loss = model((PADDED, torch.tensor([2, 0, 1])))
    torch.testing.assert_close(loss.total, (costs[0, 2] + costs[1, 0] + costs[2, 1]) / 3)
    assert loss.count == 3


def test_the_command_line_takes_classes_of_the_data_and_judges_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, out = written(tmp_path), str(tmp_path / "run")
    words = ["bert_classifier", "d=16", "depth=1", "heads=2", "length=24", "--steps", "3", "--length", "24"]
    assert run(["train", *words, "--data", spec, "--out", out]) == 0
    assert "accuracy on" in capsys.readouterr().out
    assert json.loads((tmp_path / "run/config.json").read_text())["labels"] == ["a", "b", "c"]
    assert run(["evaluate", out, "--data", spec, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metric"]["name"] == "accuracy"
    assert run(["generate", out, "--prompt", "a"]) == 2
    assert "this bert_classifier reads labelled data and cannot continue a text" in capsys.readouterr().err
    for other, says in (
        (written(tmp_path, "bca", "same.tsv"), None),
        (written(tmp_path, "abd", "other.tsv"), "was trained on the labels 'a', 'b', 'c', but labelled="),
        (
            f"text={tmp_path}/rows.tsv",
            "this bert_classifier reads labelled text, but got a text; give labelled=FILE.tsv",
        ),
    ):
        assert run(["evaluate", out, "--data", other]) == (0 if says is None else 2)
        assert says is None or says in capsys.readouterr().err


def test_what_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="classes=1: give a whole number of at least 2"):
        bert_classifier(**SMALL, classes=1)
    with pytest.raises(NoState, match="use a causal member"):
        bert_classifier(**SMALL).start(1, 8)
    with pytest.raises(
        ValueError, match="labelled text has 3 labels, but this bert_classifier is made for 2; give it classes=3"
    ):
        fit(bert_classifier(**SMALL), written(tmp_path), steps=1, length=24)
    with pytest.raises(ValueError, match=r"rows have 6 tokens, but this bert_classifier has only 4 learned positions"):
        fit(
            bert_classifier(d=8, depth=1, heads=2, length=4, classes=3, pool="first"),
            written(tmp_path),
            steps=1,
            length=6,
        )
    fit(bert_classifier(**SMALL), written(tmp_path, "ab"), steps=1, length=24, out=tmp_path / "run")
    config = tmp_path / "run/config.json"
    config.write_text(config.read_text().replace('"labels": [', '"labels": [1, '))
    with pytest.raises(CheckpointError, match="got labels="):
        load(tmp_path / "run")


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_it_begins_with_what_bert_knows(pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_bytes(b"some text that bert reads before. " * 40)
    sizes, options = ["d=16", "depth=1", "heads=2", "length=24"], ["--length", "24", "--batch", "4", "--steps"]
    text, spec = f"text={tmp_path / 'text'}", written(tmp_path)
    assert run(["train", "bert", *sizes, *options, "5", "--data", text, "--out", str(tmp_path / "bert")]) == 0
    words = ["train", "bert_classifier", *sizes, f"pool={pool}", *options, "1", "--data", spec, "--lr", "1e-9"]
    assert run([*words, "--out", str(tmp_path / "run"), "--from", str(tmp_path / "bert")]) == 0
    old, new = (load(tmp_path / name).state_dict() for name in ("bert", "run"))
    shared = [name for name in new if name.partition(".")[0] not in ("head", "pooling")]
    assert "embedding.weight" in shared and "body.layers.0.layers.0.projection.qkv.weight" in shared
    for name in shared:
        torch.testing.assert_close(new[name][: len(old[name])], old[name], rtol=0, atol=1e-6)
    assert capsys.readouterr().err.count("Traceback") == 0
    wide = [word.replace("d=16", "d=32") for word in words]
    assert run([*wide, "--out", str(tmp_path / "x"), "--from", str(tmp_path / "bert")]) == 2
    assert "got weights for d=16, expected weights for d=32" in capsys.readouterr().err
    gpt = [word.replace("bert_classifier", "gpt") for word in words if "pool" not in word and word != spec]
    assert run([*gpt, text, "--out", str(tmp_path / "x"), "--from", str(tmp_path / "bert")]) == 2
    assert "x" not in [path.name for path in tmp_path.iterdir()]
