"""Tokens that are no bytes: texts come back, bits are told for each byte, and a checkpoint keeps the tokenizer."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load, save
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.support.train_valid_test import NAMES
from kinformer.lab.data.text import TextData, read
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.fit import fit
from kinformer.members.gpt import gpt

TEXT = "".join(f"Größe {n}, naïve 東京; the cat\n sat  on {n * n} mats.\n\n" for n in range(150)).encode()


@pytest.fixture
def where(tmp_path: Path) -> str:
    (tmp_path / "a.txt").write_bytes(TEXT)
    return str(tmp_path / "a.txt")


def test_tokens_give_back_the_text_and_the_widths_its_bytes(where: str) -> None:
    text, plain = read(where, tokenizer="bpe:300"), read(where)
    assert text.tokenizer is not None and text.vocab == 300 and text.train.dtype == torch.uint16
    for name in NAMES:
        data = bytes(getattr(plain, name).tolist())
        assert text.tokenizer.decode(getattr(text, name).long().tolist()) == data
        if name != "train":
            part = text.part(name)
            assert part.bytes == len(data) and part.widths is not None
            for count in (1, 2, 9, len(part.tokens)):  # of tokens that end between letters
                piece = text.tokenizer.decode(part.tokens[:count].long().tolist())
                if not piece.endswith("\N{REPLACEMENT CHARACTER}".encode()):
                    assert len(piece) == int(part.widths[:count].sum())
            assert part.first_bytes(100).bytes <= 100 < part.first_bytes(100).bytes + 20


def test_a_text_that_is_encoded_in_pieces_has_the_tokens_of_the_whole(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read(where, tokenizer="bpe:300")
    assert whole.tokenizer is not None
    monkeypatch.setattr("kinformer.lab.data.support.tokenized_data.ENCODED", 200)
    monkeypatch.setattr("kinformer.lab.data.support.tokenized_data.EDITION", -1)  # another entry of the cache
    cut = read(where, tokenizer="bpe:300")
    assert cut.tokenizer is not None and cut.tokenizer.text == whole.tokenizer.text
    assert all(torch.equal(getattr(whole, name), getattr(cut, name)) for name in NAMES)


def test_bits_are_of_each_byte(where: str) -> None:
    """A model that knows nothing spends log2 V on each token, whatever the token is worth."""
    text = read(where, tokenizer="bpe:300")
    model = gpt(d=8, depth=1, heads=2, vocab=300, length=64)
    torch.nn.init.zeros_(model.embedding.weight)
    part = text.part("valid")
    assert part.widths is not None
    bits = math.log2(300) * (len(part.tokens) - 1)
    score = evaluate(model, part, 16)
    assert score.value == pytest.approx(bits / (part.bytes - int(part.widths[0])), rel=1e-5)
    assert score.count == len(part.tokens) - 1
    few = part.first_bytes(60)
    assert evaluate(model, part, 16, 60).count == len(few.tokens) - 1


def test_the_loss_of_a_step_is_told_by_the_mean_width_of_a_token_of_train(where: str) -> None:
    """A model that knows nothing costs log2 V a token in training too."""
    text = read(where, tokenizer="bpe:300")
    model = gpt(d=8, depth=1, heads=2, vocab=300, length=64)
    torch.nn.init.zeros_(model.embedding.weight)
    size, first = len(read(where).train), text.part("train").widths
    assert first is not None
    expected = math.log2(300) * (len(text.train) - 1) / (size - int(first[0]))
    assert fit(model, text, steps=1, batch=2, length=16, lr=1e-6).points[-1].train == pytest.approx(expected, rel=1e-4)


def test_a_checkpoint_keeps_its_tokenizer(where: str, tmp_path: Path) -> None:
    model = gpt(d=8, depth=1, heads=2, vocab=300, length=16)
    history = fit(model, f"text={where},tokenizer=bpe:300", steps=2, batch=2, length=16, out=tmp_path / "run")
    assert history.metric.name == "bits per byte" and history.best.valid < 8.5 > history.points[-1].train
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["tokenizer"] == "tokenizer.json" and len(config["tokenizer_sha256"]) == 64
    back = load(tmp_path / "run")
    assert back.tokenizer.decode(back.tokenizer.encode(b"the cat")) == b"the cat"
    with pytest.raises(ValueError, match="but text=.* has bytes; give tokenizer=DIR, the folder of the model"):
        fit(back, f"text={where},tokenizer=bytes", steps=1)
    reread = read_spec(f"text={where},tokenizer={tmp_path}/run")  # the folder of a model names its tokenizer
    assert (
        isinstance(reread, TextData)
        and reread.tokenizer is not None
        and reread.tokenizer.sha256 == back.tokenizer.sha256
    )
    (tmp_path / "run/tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is not the tokenizer of the model: its hash is wrong"):
        load(tmp_path / "run")
    (tmp_path / "run/tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match="it has no tokenizer.json"):
        load(tmp_path / "run")


def test_another_tokenizer_is_another_model(tmp_path: Path) -> None:
    """Weights beside a config of other tokens are refused, as those of another member are."""
    model = gpt(d=8, depth=1, heads=2, vocab=300)
    model.tokenizer = train_tokenizer(["the cat sat"], 300)
    save(model, tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    model.tokenizer = train_tokenizer(["another text"], 300)
    save(model, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(weights)
    with pytest.raises(CheckpointError, match="belong to different models"):
        load(tmp_path)


def test_weights_of_other_tokens_are_no_start(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kinformer.cli.__main__ import run

    small = ["train", "gpt", "d=8", "depth=1", "heads=2", "vocab=300", "--steps", "1", "--batch", "2", "--length", "8"]
    assert run([*small, "--data", f"text={where},tokenizer=bpe:300", "--out", f"{tmp_path}/a"]) == 0
    start = ["--from", f"{tmp_path}/a", "--out", f"{tmp_path}/b"]
    assert run([*small, "--data", f"text={where}", *start]) == 2
    assert "this gpt was trained on tokens of a tokenizer, but" in capsys.readouterr().err
    assert run([*small, "--data", f"text={where},tokenizer={tmp_path}/a", *start]) == 0


def test_a_vocabulary_that_is_too_small_is_refused(where: str) -> None:
    with pytest.raises(
        ValueError, match="a text has 300 kinds of tokens, but this gpt is made for 256; give it vocab=300"
    ):
        fit(gpt(d=8, depth=1, heads=2), f"text={where},tokenizer=bpe:300", steps=1)


def test_what_is_measured_of_a_split_is_told_in_its_own_bytes(where: str) -> None:
    text = read(where, tokenizer="bpe:300")
    text = replace(text, valid=text.valid[:-9], widths={**text.widths, "valid": text.widths["valid"][:-9]})
    for split in ("valid", "test"):
        size = len(text.tokenizer.decode(getattr(text, split).tolist()))  # type: ignore[union-attr]
        assert text.describe_sample(split, 8, 1 << 30) == f"the first {size:,} bytes of {split}"


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"version": "1.0"}', b"\xff\xfe"])
def test_what_is_no_tokenizer_is_one_line(where: str, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(ValueError, match="is not a tokenizer.json") as caught:
        read(where, tokenizer=str(tmp_path / "tokenizer.json"))
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_refused_where_a_tokenizer_reads_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"caf\xe9 " * 200)
    assert len(read(str(tmp_path / "a")).train)
    (tmp_path / "rows").write_bytes(b"".join(b"one\tcaf\xe9 %d\ntwo\tcaf\xe9 %d\n" % (n, n) for n in range(40)))
    message = "is not UTF-8: got the byte 0xe9, but a tokenizer reads only UTF-8"
    for spec in (f"text={tmp_path}/a", f"pairs={tmp_path}/rows", f"labelled={tmp_path}/rows"):
        with pytest.raises(ValueError, match=message) as caught:
            read_spec(f"{spec},tokenizer=bpe:300")
        assert "\n" not in str(caught.value)


def test_widths_of_letters_that_are_several_tokens() -> None:
    (encoded,) = train_tokenizer(["abc"], 257).encode_batch(["a東b"])
    assert encoded.widths.tolist() == [1] * 5 and encoded.loss.read == 5 and not encoded.loss.missing
