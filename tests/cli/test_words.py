"""The commands with a model whose tokens are no bytes."""

import json
from pathlib import Path
from typing import Any

import pytest

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.decoding.spelling import tokenize_blocks
from kinformer.lab.data.text import read

TEXT = b"".join(b"The cat no. %d sat on the m\xc3\xa4t,\r\nand it slept.\n\n" % n for n in range(150))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, and two models with a tokenizer that were trained on it."""
    place = tmp_path_factory.mktemp("words")
    (place / "text").write_bytes(TEXT)
    for name in ("gpt", "bert"):
        words = ["train", name, "d=16", "depth=1", "heads=2", "--data", f"text={place}/text,tokenizer=bpe:300"]
        assert run([*words, "--out", str(place / name), "--steps", "2", "--batch", "2", "--length", "16"]) == 0
    return place


def said(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("size", [1, 7, 100, 1000, len(TEXT)])
def test_a_text_that_comes_in_blocks_has_the_tokens_of_the_whole(there: Path, size: int) -> None:
    model = load(there / "gpt")
    blocks = (TEXT[first : first + size] for first in range(0, len(TEXT), size))
    assert [token for piece in tokenize_blocks(model, blocks) for token in piece] == model.tokenizer.encode(TEXT)


def test_bits_are_told_for_bytes_and_perplexity_for_tokens(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "valid", "test"):
        found = said(capsys, "evaluate", there / "gpt", "--data", f"text={there}/text", "--split", split)
        assert found["bytes_per_token"] > 1.5 and found["metric"]["name"] == "bits per byte"
        assert found["perplexity"] == pytest.approx(2 ** (found["value"] * found["bytes_per_token"]))
        assert found["perplexity"] < 400, "of 300 tokens"
        data = getattr(read(f"{there}/text"), split)
        assert found["count"] * found["bytes_per_token"] == pytest.approx(len(data), rel=0.01)


def test_it_goes_on_from_words_and_ends_within_one(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", there / "gpt", "--prompt", "The c\u00e4t ", "--tokens", 20, "--temperature", 0.5]
    (free,) = said(capsys, *words)["texts"]
    tokenizer = load(there / "gpt").tokenizer
    assert len(free["tokens"]) == 20 and free["text"] == tokenizer.decode(free["tokens"]).decode()
    stop = next(letter for letter in free["text"][5:] if letter.isascii() and letter.isalnum())
    (ended,) = said(capsys, *words, "--stop", stop)["texts"]
    assert ended["ended"] and ended["text"] == free["text"][: free["text"].index(stop) + 1]
    assert run([*map(str, words), "--stop", stop]) == 0
    assert capsys.readouterr().out == f"The c\u00e4t {ended['text']}\n"


def test_a_text_that_was_read_goes_on(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, whole = there / "state", there / "whole"
    read_once = said(capsys, "read", there / "gpt", there / "text", "--save", state)
    assert read_once["tokens"] == len(load(there / "gpt").tokenizer.encode(TEXT)) < read_once["bytes"] == len(TEXT)
    whole.write_bytes(TEXT.replace(b"\r\n", b"").replace(b"\n", b" "))
    said(capsys, "read", there / "gpt", whole, "--save", state, "--overwrite")
    words = ["--tokens", 9, "--temperature", 0]
    (asked,) = said(capsys, "generate", there / "gpt", "--state", state, "--prompt", "Who", *words)["texts"]
    (again,) = said(capsys, "generate", there / "gpt", "--prompt", whole.read_text() + "Who", *words)["texts"]
    assert asked["tokens"] == again["tokens"]


def test_a_blank_is_a_token(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "fill", there / "bert", "--text", "The _ sat on _", "--best", 4)
    assert [len(row) for row in found["blanks"]] == [4, 4]
    assert found["filled"].startswith("The ") and " sat on " in found["filled"]
