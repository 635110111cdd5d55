"""Data as a user gives it on the command line: each wrong input is one line and exit code 2, and leaves nothing."""

import json
import lzma
from pathlib import Path

import pytest

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.cli.support.training import prepare, tell_split
from kinformer.lab.data.resolve import resolve

SMALL = ["gpt", "d=16", "depth=1", "heads=2", "--steps", "2", "--batch", "2", "--length", "8"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_bytes(b"the cat sat on the mat. " * 200)
    (tmp_path / "cut.xz").write_bytes(lzma.compress(b"the cat sat on the mat. " * 900)[:-20])
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": f"row {n} of it"}) + "\n" for n in range(300)))
    (tmp_path / "ragged.tsv").write_text("a\tb\nc\n")
    (tmp_path / "empty").touch()
    (tmp_path / "latin").write_bytes(b"caf\xe9 " * 200)
    (tmp_path / "bad.parquet").write_bytes(b"nonsense" * 99)
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


WRONG = {
    "empty": ("text={}/empty", "holds no byte"),
    "cut off": ("text={}/cut.xz", "cut.xz is compressed, but truncated or damaged"),
    "a glob": ("text={}/*.rst", "no file matches"),
    "a field": (
        "text={}/rows.jsonl",
        "line 1 of {}/rows.jsonl has no field 'text'; there are body. Add ,field=NAME to the data",
    ),
    "bytes": ("text={}/latin,tokenizer=bpe:300", "latin is not UTF-8: got the byte 0xe9"),
    "a tokenizer": ("text={}/a.txt,tokenizer={}/tokenizer.json", "tokenizer.json is not a tokenizer.json"),
    "parquet": ("text=hf:{}/bad.parquet", "datasets cannot read hf:"),
    "ragged": ("labelled={}/ragged.tsv", "reads a text, but got labelled text; give text="),
    "an option": ("text={}/a.txt,tokeniser=bytes", "text= has no option 'tokeniser'; the nearest is 'tokenizer'"),
    "another kind": ("pairs={}/ragged.tsv", "reads a text, but got pairs; give text="),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    data, message = (text.replace("{}", str(folder)) for text in WRONG[name])
    assert run(["train", *SMALL, "--data", data, "--out", str(folder / "out")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and message in err and err.startswith("kinformer: ")
    assert not (folder / "out").exists()


def test_a_member_says_what_it_reads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rows.tsv").write_text("".join(f"{n % 2}\ttext {n}\n" for n in range(50)))
    assert run(["train", *SMALL, "--data", f"labelled={folder}/rows.tsv", "--out", str(folder / "out")]) == 2
    assert "heads=2) reads a text, but got labelled text; give text=PATH" in capsys.readouterr().err
    words = ["train", "transformer", *SMALL[1:], "--data", f"text={folder}/a.txt", "--out", str(folder / "out")]
    assert run(words) == 2
    assert " reads pairs, but got a text; give pairs=FILE.tsv" in capsys.readouterr().err


def test_words_follow_the_tokenizer_and_another_file_is_watched(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, data = folder / "out", f"text={folder}/rows.jsonl,field=body,tokenizer=bpe:270"
    (folder / "watched.jsonl").write_text(json.dumps({"body": "row 7 of another file"}) + "\n")
    words = ["train", *SMALL, "--data", data, "--valid", str(folder / "watched.jsonl"), "--out", str(out)]
    assert run(words) == 0
    captured = capsys.readouterr()
    assert captured.err.count(f"valid is text={folder}/watched.jsonl") == 1
    assert "on the first 22 bytes of valid" in captured.out
    assert load(out).member.keywords["vocab"] == 270 and (out / "tokenizer.json").is_file()
    assert run(["generate", str(out), "--prompt", "row 7", "--tokens", "3", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("row 7")
    assert run(["train", *SMALL, "vocab=260", "--data", data, "--out", str(folder / "other")]) == 2
    assert "is made for 260; give it vocab=270" in capsys.readouterr().err


def test_few_bytes_to_watch_are_warned_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "few").write_bytes(b"the cat sat. ")
    for valid, warned in ((folder / "few", True), (folder / "a.txt", False)):
        tell_split(prepare(resolve(f"text={folder}/a.txt"), 1, None, valid=str(valid)))
        err = capsys.readouterr().err
        assert (
            "for validation (valid)" in err
            and ("warning: the validation data has only 13 bytes, so bits per byte are uncertain" in err) == warned
        )


def test_a_model_with_a_tokenizer_is_evaluated_on_data_without_tokens(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(folder / "out")
    assert run(["train", *SMALL, "--data", f"text={folder}/a.txt,tokenizer=bpe:260", "--out", out]) == 0
    refusals = {
        f"images={folder}": "this gpt reads a text, but got images; give text=PATH",
        "env=CartPole-v1": "this gpt reads a text, but got an environment; give text=PATH",
        "task=parity": "was trained on tokens of a tokenizer, but task=parity has bytes",
    }
    for data, message in refusals.items():
        capsys.readouterr()
        assert run(["evaluate", out, "--data", data]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
