"""`kinformer read`, and what goes on from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from kinformer.cli.__main__ import run
from kinformer.cli.read import BLOCK, CHUNK
from tests.cli.folders import folder
from tests.cli.test_commands import fails

TEXT = bytes(range(32, 127)) * 20


def texts(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["generate", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["texts"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(TEXT)
    return path


@pytest.mark.parametrize("name", ["gpt", "transformer_xl"])
def test_asking_what_was_read_is_reading_again(
    name: str, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, state, prompts = folder(tmp_path / "run", name), tmp_path / "state", tmp_path / "prompts"
    assert len(TEXT) > 2 * CHUNK
    assert run(["read", out, str(text), "--save", str(state), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tokens"] == report["bytes"] == len(TEXT) and report["state_bytes"] < state.stat().st_size
    questions = [b"why", b"when was it?"]
    prompts.write_bytes(b"\n".join(questions))
    words = ["--tokens", 9, "--temperature", 0]
    answers = texts(capsys, out, "--state", state, "--prompts", prompts, *words)
    assert answers == texts(capsys, out, "--state", state, "--prompts", prompts, *words), "as often as one likes"
    whole = tmp_path / "whole"
    for question, answer in zip(
        [b"", *questions], [*texts(capsys, out, "--state", state, *words), *answers], strict=True
    ):
        whole.write_bytes(TEXT + question)
        (reread,) = texts(capsys, out, "--prompts", whole, *words)
        assert answer["tokens"] == reread["tokens"]
        assert answer["log_probability"] == pytest.approx(reread["log_probability"], rel=1e-4)


def test_a_file_is_read_in_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, text, state = folder(tmp_path / "run", "linear_transformer", lanes=True), tmp_path / "text", tmp_path / "state"
    text.write_bytes(b"x" * (BLOCK + 77))
    assert run(["read", out, str(text), "--save", str(state)]) == 0
    captured = capsys.readouterr()
    assert (
        f"{BLOCK + 77:,} tokens read in 0:0" in captured.out
        and f"kinformer generate {out} --state {state}" in captured.err
    )


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, other, masked = (folder(tmp_path / name, name) for name in ("gpt", "transformer_xl", "bert"))
    pairs = folder(tmp_path / "transformer", "transformer")
    draws = folder(tmp_path / "image_transformer", "image_transformer", shape=(1, 2, 2))
    text.write_bytes(b"a short text")
    (tmp_path / "empty").touch()
    state = tmp_path / "state"
    to = ["--save", str(state)]
    wrong: list[tuple[list[str], str]] = [
        ([str(tmp_path / "none"), str(text), *to], "there is no file or folder"),
        ([out, str(tmp_path / "none"), *to], "there is no file or folder"),
        ([out, str(tmp_path), *to], "is a folder; give a file that contains text"),
        ([out, str(tmp_path / "empty"), *to], "is empty; give a file that contains text"),
        ([out, "/dev/zero", *to], "there is no file or folder /dev/zero"),
        ([out, str(text)], "Missing option '--save'"),
        ([out, str(text), "--save", str(tmp_path)], "is a folder; --save must name a file"),
        ([out, str(text), "--save", str(tmp_path / "no" / "state")], "cannot write to"),
        ([masked, str(text), *to], "fills in masked tokens and cannot generate text"),
        ([pairs, str(text), *to], "reads a source and writes a target"),
        ([draws, str(text), *to], "reads images and no text; only a language model can continue a text"),
    ]
    for words, message in wrong:
        fails(capsys, ["read", *words], message)
        assert not state.exists()
    assert run(["read", out, str(text), *to]) == 0
    data = state.read_bytes()
    fails(capsys, ["read", out, str(text), *to], "already exists; give another --save, or --overwrite")
    assert state.read_bytes() == data
    assert run(["read", out, str(text), *to, "--overwrite"]) == 0 and state.read_bytes() == data
    ask = ["--state", str(state), "--prompt", "a"]
    fails(capsys, ["generate", other, *ask], "is the state of another model")
    fails(capsys, ["generate", folder(tmp_path / "seed", "gpt", seed=1), *ask], "is the state of another model")
    state.write_bytes(data[: len(data) // 2])
    fails(capsys, ["generate", out, *ask], "is truncated or not a state file")
    state.write_bytes(b"")
    fails(capsys, ["generate", out, *ask], "is truncated or not a state file")
