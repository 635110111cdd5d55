"""Labelled texts: what is read, batches of like lengths, and a classifier that learns from them."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from kinformer.lab.data.labelled import LabelledData, read
from kinformer.lab.data.pairs import PairData
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support.length_buckets import Buckets
from kinformer.lab.train.fit import fit
from kinformer.members.gpt import gpt
from kinformer.members.transformer import transformer
from tests.lab.train import tiny

LINES = [f"{'abc'[n % 3]}\t{'abc'[n % 3] * (n % 11 + 2)}{'xyz'[n // 3 % 3]}{n}" for n in range(200)]


def written(folder: Path, lines: list[str]) -> str:
    (folder / "rows.tsv").write_text("".join(line + "\n" for line in lines))
    return str(folder / "rows.tsv")


def test_rows_are_read_from_lines_json_and_compressed(tmp_path: Path) -> None:
    plain = read(written(tmp_path, LINES))
    assert plain.labels == ("a", "b", "c") and len(plain.train) + len(plain.valid) + len(plain.test) == 200
    rows = [dict(zip(("kind", "body"), line.split("\t"), strict=True)) for line in LINES]
    (tmp_path / "rows.jsonl").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    packed = read_spec(f"labelled={tmp_path}/rows.jsonl,label=kind,text=body")
    assert isinstance(packed, LabelledData) and packed.train == plain.train and packed.valid == plain.valid
    assert "200" not in plain.split and "of 3 labels; by the SHA-256 of each text" in plain.split


def test_the_same_text_is_in_one_split_alone(tmp_path: Path) -> None:
    data = read(written(tmp_path, [*LINES, *LINES]))
    texts = [{bytes(text) for text, _ in lot} for lot in (data.train, data.valid, data.test)]
    assert sum(map(len, texts)) == len(set().union(*texts)) == 200


def test_batches_are_of_like_lengths_and_come_again(tmp_path: Path) -> None:
    data = read(written(tmp_path, LINES))
    stream = data.stream(tiny.classifier(), 4, 100, 3, 1 << 16)
    wastes = []
    for step in range(50):
        tokens, labels = stream.at(step)
        batch = stream.at(step)
        assert torch.equal(tokens, batch[0]) and torch.equal(labels, batch[1])
        assert all(bytes([int(row[0])]).decode() == data.labels[int(label)] for row, label in zip(*batch, strict=True))
        wastes.append(float((tokens < 0).double().mean()))
    random_lengths = [
        torch.tensor([len(data.train[n][0]) for n in torch.randint(len(data.train), (4,))]) for _ in range(50)
    ]
    apart = [1 - float(lengths.double().mean() / lengths.max()) for lengths in random_lengths]
    assert sum(wastes) < 0.6 * sum(apart)


def test_every_row_is_as_likely() -> None:
    buckets = Buckets([n % 37 for n in range(203)], batch=3, seed=1)
    count = Counter(row for step in range(20_000) for row in buckets.at(step))
    assert len(count) == 203 and max(count.values()) < 1.35 * 60_000 / 203 and min(count.values()) > 0.65 * 60_000 / 203


def test_a_classifier_learns(tmp_path: Path) -> None:
    history = fit(tiny.classifier(), f"labelled={written(tmp_path, LINES)}", steps=150, batch=16, lr=0.02, length=100)
    assert history.metric.name == "accuracy" and history.best.valid > 0.8
    with pytest.warns(UserWarning, match=r"texts have more than 5 tokens, and only their first tokens are read"):
        fit(tiny.classifier(), f"labelled={written(tmp_path, LINES)}", steps=1, length=5)


def test_a_member_of_another_kind_refuses(tmp_path: Path) -> None:
    spec = f"labelled={written(tmp_path, LINES)}"
    with pytest.raises(ValueError, match="this gpt reads a text, but got labelled text; give text=PATH"):
        fit(gpt(d=8, depth=1, heads=2), spec, steps=1)
    with pytest.raises(ValueError, match="this classifier reads labelled text, but got a text; give labelled=FILE.tsv"):
        fit(tiny.classifier(), "text=stdlib", steps=1)


def test_a_csv_leads_to_the_reader_of_data_sets(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"text {n},{n % 2}\n" for n in range(40)))
    with pytest.raises(ValueError, match=r"expected 2; write labelled=hf:.*rows.csv for a CSV with the columns label"):
        read(f"{tmp_path}/rows.csv")
    pytest.importorskip("datasets")
    assert read(f"hf:{tmp_path}/rows.csv").labels == ("0", "1")


WRONG = {
    "empty": ([], "is empty; write a line for each row: label, a tab, text"),
    "ragged": (["a\tx", "b"], "line 2 of labelled=.* has 1 column, expected 2"),
    "no text": (["a\tx", "b\t"], "line 2 of .* has an empty text"),
    "one text": (["a\tx", "b\tx"], "has only one distinct text"),
    "one label": (["a\tx", "a\ty", "a\tz"], "has only one label in its training texts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line(tmp_path: Path, name: str) -> None:
    lines, says = WRONG[name]
    with pytest.raises(ValueError, match=says) as caught:
        read(written(tmp_path, lines))
    assert "\n" not in str(caught.value)


def test_pairs_of_json_of_larger_tokens_and_watched_apart(tmp_path: Path) -> None:
    rows = [{"de": f"Satz {n} von vielen", "en": f"sentence {n} of many"} for n in range(80)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = f"pairs={tmp_path}/p.jsonl,source=de,target=en,tokenizer=bpe:300"
    data = read_spec(spec)
    assert (
        isinstance(data, PairData) and data.tokenizer is not None and len(data.train[0][0]) < len("Satz 10 von vielen")
    )
    assert data.tokenizer.decode(data.train[0][1]).startswith(b"sentence ")
    model = transformer(d=16, depth=1, heads=2, hidden=16, dropout=0.0, vocab=300)
    assert fit(model, spec, steps=2, batch=4, length=20).best.valid < 12
    assert model.tokenizer.sha256 == data.tokenizer.sha256
    with pytest.warns(UserWarning, match="80 of 80 sources in valid and test are copies"):
        watched = read_spec(spec, valid=f"{tmp_path}/p.jsonl")
    assert isinstance(watched, PairData) and len(watched.train) == len(watched.valid) == 80 and not watched.test
