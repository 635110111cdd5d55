"""Tokenizers of a training: given in Python, kept with the model, or unknown, in which case texts are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import kinformer as kf
from kinformer.checkpoint.checkpoint import load, save
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from kinformer.checkpoint.unknown_tokenizer import UnknownTokenizer
from kinformer.cli.__main__ import run
from kinformer.core.model import Model
from kinformer.lab.look import look
from kinformer.lab.train.fit import fit
from kinformer.members.bert_classifier import bert_classifier
from kinformer.members.gpt import gpt
from kinformer.members.image_transformer import image_transformer

SIZE = {"d": 8, "depth": 1, "heads": 2}
QUICK = {"steps": 1, "batch": 2, "length": 16}
WORDS = "the cat sat on a mat and looked at birds in trees".split()
TEXTS = [" ".join(WORDS[n * (3 + k) % 11] for k in range(9)) + f" {n * n}" for n in range(150)]
UNKNOWN = "this model has an unknown tokenizer"


@pytest.fixture(scope="module")
def backend() -> Any:
    """A tokenizer of the package `tokenizers`."""
    return train_tokenizer(TEXTS, 280).backend


def refuses(capsys: pytest.CaptureFixture[str], *words: object) -> None:
    """A command refuses texts in one line."""
    capsys.readouterr()
    assert run(list(map(str, words))) == 2
    err = capsys.readouterr().err
    assert UNKNOWN in err.splitlines()[-1] and "Traceback" not in err, err


def ids(backend: Any) -> list[dict[str, list[int]]]:
    return [{"input_ids": backend.encode(text).ids} for text in TEXTS]


def on_ids(backend: Any, **keywords: Any) -> Model:
    model = gpt(**SIZE, vocab=280, length=64)
    fit(model, ids(backend), **QUICK, **keywords)
    return model


def test_a_model_trained_on_ids_is_saved_as_such_and_refuses_texts(
    backend: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on_ids(backend, out=tmp_path / "run")
    assert json.loads((tmp_path / "run/config.json").read_text())["tokenizer"] == "unknown"
    model = load(tmp_path / "run")
    (tmp_path / "held.txt").write_text("\n".join(TEXTS))
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    refuses(capsys, "generate", tmp_path / "run", "--prompt", "the cat")
    refuses(capsys, "read", tmp_path / "run", tmp_path / "held.txt", "--save", tmp_path / "state")
    refuses(capsys, "evaluate", tmp_path / "run", "--data", f"text={tmp_path}/held.txt")
    for refused in (lambda: look(model, "the cat"), lambda: fit(model, TEXTS, **QUICK)):
        with pytest.raises(ValueError, match=UNKNOWN):
            refused()
    fit(model, ids(backend), **QUICK)  # ids go on


def test_a_given_tokenizer_lets_it_read_texts(backend: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    on_ids(backend, out=tmp_path / "run")
    (tmp_path / "held.txt").write_text("\n".join(TEXTS))
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    data = f"text={tmp_path}/held.txt,tokenizer={tmp_path}/tokenizer.json"
    assert run(["evaluate", f"{tmp_path}/run", "--data", data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metric"]["name"] == "bits per byte"
    model = load(tmp_path / "run")
    model.tokenizer = backend
    save(model, tmp_path / "run")
    assert run(["generate", f"{tmp_path}/run", "--prompt", "the cat", "--tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("the cat")
    assert load(tmp_path / "run").tokenizer.encode("the cat") == backend.encode("the cat").ids


@pytest.mark.parametrize("form", ["tokenizers", "transformers", "path"])
def test_fit_takes_a_tokenizer_for_texts_and_ids(form: str, backend: Any, tmp_path: Path) -> None:
    tokenizer: Any = backend
    if form == "path":
        tokenizer = tmp_path / "tokenizer.json"
        tokenizer.write_text(backend.to_str())
    if form == "transformers":
        tokenizer = pytest.importorskip("transformers").PreTrainedTokenizerFast(tokenizer_object=backend)
    (tmp_path / "text").write_text("\n".join(TEXTS))
    rows = [torch.tensor(row["input_ids"])[None] for row in ids(backend)]
    loader = DataLoader([row[0] for row in rows], batch_size=1)
    sources: tuple[tuple[Any, Any], ...] = (
        (TEXTS, None),
        (ids(backend), None),
        (rows, None),
        (loader, rows[:1]),
        (f"text={tmp_path}/text", None),
        (tmp_path / "text", None),
    )
    for number, (data, valid) in enumerate(sources):
        model = gpt(**SIZE, vocab=280, length=64)
        quick = {"steps": 1} if data is loader or data is rows else QUICK
        fit(model, data, valid=valid, tokenizer=tokenizer, out=tmp_path / str(number), **quick)
        saved = load(tmp_path / str(number)).tokenizer
        assert saved.encode("the cat sat") == backend.encode("the cat sat").ids, data


def test_ids_that_are_bytes_can_be_named_so(tmp_path: Path) -> None:
    model = gpt(**SIZE)
    fit(model, torch.tensor(list(b"the cat sat on the mat. " * 20)), tokenizer="bytes", **QUICK)
    assert model.tokenizer is None and look(model, "the cat").tokens[0] == b"t"
    fit(model, torch.tensor(list(b"and it slept there. " * 20)), **QUICK)  # a trained model keeps its own
    assert model.tokenizer is None


def test_a_classifier_trained_on_a_loader_refuses_texts(
    backend: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"input_ids": torch.tensor([row["input_ids"][:5]] * 2), "labels": torch.tensor([0, 1])} for row in ids(backend)
    ]
    model = bert_classifier(**SIZE, vocab=280, length=64)
    fit(model, rows[:8], steps=1, out=tmp_path / "run")
    assert isinstance(model.tokenizer, UnknownTokenizer)
    refuses(capsys, "classify", tmp_path / "run", "--text", "the cat")


def test_ids_can_be_looked_at(backend: Any) -> None:
    model = on_ids(backend)
    row = backend.encode("the cat sat").ids
    seen = look(model, row)
    assert seen.tokens[0] == f"<{row[0]}>".encode() and len(seen.tokens) == len(row)
    other = look(model, torch.tensor([row]))
    assert all(torch.equal(seen.maps[name], other.maps[name]) for name in seen.maps)


def test_another_tokenizer_and_wrong_values_are_refused(backend: Any, tmp_path: Path) -> None:
    model = gpt(**SIZE, vocab=300)
    fit(model, TEXTS, tokenizer=backend, **QUICK)
    refused: dict[str, tuple[Any, Any, type[Exception]]] = {
        "is not the tokenizer that this gpt was trained with": (model, train_tokenizer(TEXTS, 260).backend, ValueError),
        "wrong tokenizer: got int, expected": (gpt(**SIZE), 5, TypeError),
        "tokenizer=bpe:400 trains a tokenizer": (gpt(**SIZE), "bpe:400", ValueError),
        "tokenizer= has no effect: this image_transformer reads images": (
            image_transformer(**SIZE),
            backend,
            ValueError,
        ),
    }
    for message, (other, tokenizer, error) in refused.items():
        with pytest.raises(error, match=message):
            fit(other, "text=stdlib" if other.reads == "images" else TEXTS, tokenizer=tokenizer, **QUICK)
    wrong: Any = gpt(**SIZE)
    wrong.tokenizer = 5
    with pytest.raises(TypeError, match="wrong tokenizer: got int"):
        kf.save(wrong, tmp_path / "new")
    assert not (tmp_path / "new").exists()
