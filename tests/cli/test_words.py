"""The commands with a model whose tokens are no bytes."""

import json
from pathlib import Path
from typing import Any

import pytest

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.decoding.byte_tokenizer import tokenize_blocks
from kinformer.lab.data.text import read

TEXT = b"".join(b"The cat no. %d sat on the m\xc3\xa4t,\r\nand it slept.\n\n" % n for n in range(150))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, and two models with a tokenizer that were trained on it."""
    place = tmp_path_factory.mktemp("words")
    (place / "text").write_bytes(TEXT)
    for name in ("gpt", "bert"):
        words = ["train", name, "d=16", "depth=1", "heads=2", "--data", f"text={place}/text,tokenizer=bpe:300"]
        assert run([*words, "--out", str(place / name), "--steps", "2", "--batch", "2", "--length", "16"]) == 0
    return place


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("size", [1, 7, 100, 1000, len(TEXT)])
def test_a_text_that_comes_in_blocks_has_the_tokens_of_the_whole(workspace: Path, size: int) -> None:
    model = load(workspace / "gpt")
    blocks = (TEXT[first : first + size] for first in range(0, len(TEXT), size))
    assert [token for piece in tokenize_blocks(model, blocks) for token in piece] == model.tokenizer.encode(TEXT)


def test_bits_are_told_for_bytes_and_perplexity_for_tokens(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "valid", "test"):
        report = run_json(capsys, "evaluate", workspace / "gpt", "--data", f"text={workspace}/text", "--split", split)
        assert report["bytes_per_token"] > 1.5 and report["metric"]["name"] == "bits per byte"
        assert report["perplexity"] == pytest.approx(2 ** (report["value"] * report["bytes_per_token"]))
        assert report["perplexity"] < 400, "of 300 tokens"
        data = getattr(read(f"{workspace}/text"), split)
        assert report["count"] * report["bytes_per_token"] == pytest.approx(len(data), rel=0.01)


def test_it_goes_on_from_words_and_ends_within_one(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", workspace / "gpt", "--prompt", "The c\u00e4t ", "--tokens", 20, "--temperature", 0.5]
    (free,) = run_json(capsys, *words)["texts"]
    tokenizer = load(workspace / "gpt").tokenizer
    assert len(free["tokens"]) == 20 and free["text"] == tokenizer.decode(free["tokens"]).decode()
    stop = next(letter for letter in free["text"][5:] if letter.isascii() and letter.isalnum())
    (ended,) = run_json(capsys, *words, "--stop", stop)["texts"]
    assert ended["ended"] and ended["text"] == free["text"][: free["text"].index(stop) + 1]
    assert run([*map(str, words), "--stop", stop]) == 0
    assert capsys.readouterr().out == f"The c\u00e4t {ended['text']}\n"


def test_a_text_that_was_read_goes_on(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, whole = workspace / "state", workspace / "whole"
    read_once = run_json(capsys, "read", workspace / "gpt", workspace / "text", "--save", state)
    assert read_once["tokens"] == len(load(workspace / "gpt").tokenizer.encode(TEXT)) < read_once["bytes"] == len(TEXT)
    whole.write_bytes(TEXT.replace(b"\r\n", b"").replace(b"\n", b" "))
    run_json(capsys, "read", workspace / "gpt", whole, "--save", state, "--overwrite")
    words = ["--tokens", 9, "--temperature", 0]
    (answer,) = run_json(capsys, "generate", workspace / "gpt", "--state", state, "--prompt", "Who", *words)["texts"]
    (reread,) = run_json(capsys, "generate", workspace / "gpt", "--prompt", whole.read_text() + "Who", *words)["texts"]
    assert answer["tokens"] == reread["tokens"]


def test_a_blank_is_a_token(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, "fill", workspace / "bert", "--text", "The _ sat on _", "--best", 4)
    assert [len(row) for row in report["blanks"]] == [4, 4]
    assert report["filled"].startswith("The ") and " sat on " in report["filled"]
