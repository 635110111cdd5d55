"""Tasks on the command line: a training that learns, an answer that is written, members side by side, pages."""

import json
from pathlib import Path

import pytest

from kinformer.cli.__main__ import run
from kinformer.lab.train.history import History

SMALL = ["d=32", "depth=1", "heads=2"]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gpt that has learned to copy two letters of four."""
    out = tmp_path_factory.mktemp("run") / "gpt"
    words = ["train", "gpt", *SMALL, "--data", "task=copy,length=3,symbols=4", "--steps", "120", "--batch", "8"]
    assert run([*words, "--lr", "0.005", "--out", str(out)]) == 0
    return out


def test_a_small_model_learns_to_copy(learned: Path) -> None:
    history = History.read(learned)
    assert history.metric.name == "accuracy" and history.best.valid > 0.9
    assert 0 < history.best.extras["rows all right"] <= history.best.valid
    assert history.points[0].valid < history.best.valid
    config = json.loads((learned / "config.json").read_text())
    assert config["metric"]["name"] == "accuracy" and config["trained_length"] == 7


def test_it_writes_and_is_evaluated(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", str(learned / "best"), "--prompt", "abd|", "--tokens", "3", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == "abd|abd\n"
    assert run(["evaluate", str(learned / "best"), "--data", "task=copy,length=3,symbols=4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["metric"]["name"] == "accuracy" and report["value"] > 0.9 and report["split"] == "test"


@pytest.mark.prove
def test_members_are_compared_on_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = ["gpt(d=16, depth=1, heads=2)", "transformer(d=16, depth=1, heads=2, hidden=16)"]
    members.append("bert(d=16, depth=1, heads=2)")
    words = ["--data", "task=recall,pairs=2", "--minutes", "0.003", "--batch", "2", "--out", str(tmp_path)]
    assert run(["compare", *members, *words]) == 0
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "results.json").read_text())
    assert report["levels"] == {"guessing": 0.1} and (tmp_path / "curves.png").stat().st_size > 10_000
    for row in report["members"]:
        assert 0 <= row["accuracy"] <= 1 and f"{row['accuracy']:.3f}" in out and "rows_all_right" in row
        assert len(row["answer"]) == (1 if row["member"] == "gpt" else 2) == len(row["sample"])
        assert row["ms_per_token"] is None if row["member"] == "bert" else row["ms_per_token"] > 0
        assert row["name"] in out and row["prompt"].startswith(report["members"][0]["prompt"][:4])
    assert "accuracy" in out and "guessing" in out and "bits per byte" not in out


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["train", "gpt", "--steps", "1", "--data", "task=recal"], "there is no task 'recal'; the nearest is 'recall'"),
        (["train", "gpt", "--steps", "1", "--data", "task=copy,lenght=3"], "has no keyword 'lenght'; the nearest is"),
        (["compare", "gpt", "bert", "--minutes", "0", "--data", "task=copy"], "wrong number of minutes: got 0"),
    ):
        assert run([*words, "--out", str(tmp_path / "none")]) == 2
        err = capsys.readouterr().err
        assert says in err and err.count("\n") == 1 and not (tmp_path / "none").exists()


def test_list_and_show_have_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "tasks"]) == 0
    assert "copy_at_distance" in (out := capsys.readouterr().out) and "listops" in out
    assert run(["show", "recall", "pairs=2", "queries=1"]) == 0
    out = capsys.readouterr().out
    assert "Ba et al., 2016" in out and "kinformer train gpt --data task=recall" in out
    assert "rows of at most 7 symbols; ^ marks the answers; guessing has accuracy 0.100" in out
    lines = out.splitlines()
    marked = [n for n, line in enumerate(lines) if line.strip() == "^"]
    assert len(marked) == 3
    for n in marked:
        row = lines[n - 1].strip()
        assert lines[n].index("^") == lines[n - 1].index(row) + 6 == lines[n - 1].index(row) + len(row) - 1
        assert row[6] == dict(zip(row[:4:2], row[1:4:2], strict=True))[row[5]]


def test_a_task_of_one_s_own_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy = Path(__file__).parents[1] / "toys" / "task.py"
    assert run(["check", str(toy)]) == 0
    out = capsys.readouterr().out
    assert "Twice, a task" in out and "answers" in out and "1 law holds, none is broken" in out
    wrong = tmp_path / "wrong.py"
    wrong.write_text(toy.read_text().replace("return 4", "return 3"))
    assert run(["check", str(wrong)]) == 1
    assert "has 4 symbols, but the task has width=3" in capsys.readouterr().out
