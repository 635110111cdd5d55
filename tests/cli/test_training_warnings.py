"""What a training says about its own result and its data: guesses, tables as text, few rows, and one value per step."""

import json
import re
from pathlib import Path

import pytest

from kinformer.cli.__main__ import run
from tests.cli.test_commands import fails

SMALL = ["gpt", "d=16", "depth=1", "heads=2"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 200)
    return tmp_path


def trained(capsys: pytest.CaptureFixture[str], *words: str, member: list[str] = SMALL) -> tuple[str, list[str]]:
    """The output of a training, and its lines on stderr."""
    capsys.readouterr()
    options = [] if "--batch" in words else ["--batch", "2", "--length", "8"]
    assert run(["train", *member, "--out", "run", "--overwrite", *options, *words]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err.splitlines()


def test_a_result_that_is_no_better_than_a_guess_is_warned_of(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worse = ["--lr", "10", "--schedule", "constant"]
    out, err = trained(capsys, "--data", "text=text", "--steps", "120", *worse)
    warned = [line for line in err if "uniform guess" in line]
    level = r"is not better than a uniform guess \(8\.000 bits per byte\)"
    during = rf"warning: gpt\(.*\): [\d,.]+ bits per byte on validation data at step \d+ {level}"
    assert re.fullmatch(during, warned[0]) and len(warned) == 2, "once in the training, and once at its end"
    value = out.split(": ")[1].split()[0]
    assert re.fullmatch(rf"warning: the best result, {value} bits per byte, {level}\. Train .* below 10", warned[1])
    _, err = trained(capsys, "--data", "text=text", "--steps", "120", "--lr", "0.01")
    assert not [line for line in err if "guess" in line]


def test_accuracy_has_the_level_that_the_data_knows(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = trained(capsys, "--data", "task=recall,pairs=2", "--steps", "2", "--batch", "2")
    assert "accuracy, is not better than guessing (0.100 accuracy). Train longer" in err[-1]
    assert len([line for line in err if "guessing" in line]) == 1


def test_each_value_has_its_step_and_the_same_result_is_printed_once(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = trained(capsys, "--data", "text=text", "--steps", "120", "--lr", "0.003")
    shown = {int(step): value for line in err for value, step in re.findall(r"validation ([\d.]+) at step (\d+)", line)}
    lines = [json.loads(line) for line in (place / "run/metrics.jsonl").read_text().splitlines()]
    points = {line["after"]: f"{line['valid']:.3f}" for line in lines if "valid" in line}
    assert shown and shown.items() <= points.items() and len(points) > 2
    assert out.count("bits per byte") == 1 and "at the last step, 120, saved in run and run/best; " in out
    assert re.search(r"; [\d,]+ tokens/s\n$", out)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("notes.csv", "write series=notes.csv for columns of numbers over time"),
        ("notes.tsv", "write pairs=notes.tsv for a source and a target, or labelled=notes.tsv for a label and a text"),
        ("notes.html", "save the text without tags"),
        ("text", None),
    ],
)
def test_a_table_as_text_is_trained_on_with_a_warning(
    name: str, says: str | None, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / name).write_bytes(b"the cat,sat on\tthe mat\n" * 200)
    _, err = trained(capsys, "--data", f"text={name}", "--steps", "1")
    warned = [line for line in err if "as plain text" in line]
    assert len(warned) == (says is not None) and all(says in line for line in warned if says)


def test_few_rows_of_pairs_are_warned_of(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "pairs.tsv").write_text("".join(f"ask {n}\tsay {n}\n" for n in range(4)))
    member = ["transformer", "d=16", "depth=1", "heads=2", "hidden=16"]
    _, err = trained(capsys, "--data", "pairs=pairs.tsv", "--steps", "1", member=member)
    assert "warning: the validation data has only 1 row, so results on it are not reliable. Give more rows" in err
    assert "warning: the test data has no row, so results on it are not reliable. Give more rows" in err


def test_the_length_of_a_member_follows_that_of_its_rows(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = ["--data", "text=text", "--steps", "1", "--batch", "1", "--length", "1100"]
    _, err = trained(capsys, *long)
    assert err[0] == "gpt(d=16, depth=1, heads=2): length=1100, from --length"
    assert json.loads((place / "run/config.json").read_text())["keywords"]["length"] == 1100
    assert run(["train", *SMALL, "--out", "run", "--resume", *long]) == 0
    _, err = trained(capsys, *long, member=[*SMALL, "position=rotary"])
    assert not [line for line in err if "from --length" in line], "it has no table of positions"
    given = ["train", *SMALL, "length=1000", "--out", "other", *long]
    fails(capsys, given, "rows have 1100 tokens, but it has only 1000 learned positions")
    assert run(["cost", "longformer", "d=16", "depth=1", "heads=2", "--batch", "1", "--length", "1100"]) == 0
    assert "longformer(d=16, depth=1, heads=2): length=1100, from --length" in capsys.readouterr().err
