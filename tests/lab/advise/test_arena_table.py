"""The table of scores in the package is what the script makes from the result files of the arena."""

import json
from pathlib import Path

import pytest

from bench.arena_table import PAGE, RESULTS, arena_table, main, scores_in_markdown
from kinformer.lab.advise.arena_scores import TABLE, arena_tasks, read_scores
from kinformer.lab.advise.caveats import _of_quality
from kinformer.lab.arena.arena_results import write_results
from kinformer.lab.arena.schedule import SEEDS
from kinformer.pages.atlas.member_card import _measured
from tests.lab.advise.test_recommendation import fit
from tests.lab.arena.test_arena import TASK, TEXT, arena_run, facts, results_of


def test_the_table_is_what_the_script_makes_from_the_result_files() -> None:
    assert json.loads(TABLE.read_text(encoding="utf-8")) == arena_table(RESULTS)
    assert [task.name for task in arena_tasks()] == [
        record["name"] for record in arena_table(RESULTS)["tasks"] if record["passed"]
    ]


def test_the_page_of_the_arena_has_the_scores_of_the_result_files() -> None:
    assert scores_in_markdown(arena_table(RESULTS)) in PAGE.read_text(encoding="utf-8")


def test_the_scores_on_the_page_have_means_intervals_ranks_and_gaps(tmp_path: Path) -> None:
    results = results_of({"gpt": (2.0, 2.1, 2.2), "llama": (1.0, 1.0, 1.0), "lstm": (1.5,)}, TEXT)
    write_results(results, tmp_path / "novel.json")
    write_results(results_of({"gpt": (1.0, 1.0, 1.0)}), tmp_path / "recall.json")
    assert scores_in_markdown(arena_table(tmp_path)) == (
        "| member | novel | recall |\n| --- | --- | --- |\n"
        "| llama | 1.000 (1.000 to 1.000, rank 1) |  |\n"
        "| gpt | 2.100 (1.852 to 2.348, rank 2) | 1.000 (0.995 to 1.000, rank 1) |\n"
    )


def test_without_result_files_the_table_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="got no result files"):
        main(tmp_path / "missing", tmp_path / "table.json")
    assert not (tmp_path / "table.json").exists()


def test_the_table_has_the_scores_and_intervals_of_the_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {"gpt": (2.0, 2.1, 2.2), "llama": (1.0, 1.0, 1.0), "lstm": (1.5,), "reformer": (1.3, 1.3, None)}
    results = results_of({**scores, "performer": (None,) * 3}, TEXT)
    results.facts["calm"] = facts(8.0)
    results.runs += [arena_run("calm", seed, 1.4) for seed in SEEDS]
    write_results(results, tmp_path / "novel.json")
    write_results(results_of({"gpt": (0.5, 0.95, 0.95)}), tmp_path / "recall.json")  # gpt fails with a seed
    table = json.loads(json.dumps(arena_table(tmp_path)))
    novel, recall = table["tasks"]
    assert (novel["name"], novel["metric"], novel["sign"], novel["passed"]) == ("novel", "bits per byte", 1, True)
    assert novel["budget"] == {"steps": TEXT.steps, "batch": TEXT.batch, "length": TEXT.length}
    assert (recall["name"], recall["metric"], recall["sign"], recall["passed"]) == (TASK.name, "accuracy", -1, False)
    assert recall["budget"] == {"steps": TASK.steps, "batch": TASK.batch}
    gpt, lstm = novel["members"]["gpt"], novel["members"]["lstm"]
    half = 4.302652729911275 * 0.1 / 3**0.5  # Student's t with 2 degrees of freedom
    assert gpt["mean"] == 2.1 and gpt["interval"] == pytest.approx([2.1 - half, 2.1 + half], abs=1e-5)
    assert (gpt["rank"], gpt["seeds"]) == (2, 3) and (lstm["interval"], lstm["rank"], lstm["seeds"]) == (None, None, 1)
    (task,) = read_scores(table)  # a task that gpt has not learned compares no members
    assert task.ranked.keys() == {"gpt", "llama"} and task.is_better("llama", "gpt")
    assert not task.is_better("gpt", "llama")
    reasons = {name: score.not_compared for name, score in task.members.items()}
    assert reasons == {
        "gpt": None,
        "llama": None,
        "lstm": "1 seed only",
        "calm": "trained for gpt's time in place of gpt's tokens",
        "reformer": "1 of 3 runs stopped, because the loss was not finite",
        "performer": "3 of 3 runs stopped, because the loss was not finite",
    }
    assert task.members["performer"].text == "no score" and task.members["reformer"].interval is None
    fits = [fit(name, 1.0, 1.0, 1.0) for name in ("gpt", "performer", "rfa")]
    assert list(_of_quality("lm", fits, (task,)))[1:] == [
        f"Quality: recommended only if no member with a rank fits: {name} ({why})."
        for name, why in (("performer", reasons["performer"]), ("rfa", "not measured"))
    ]
    monkeypatch.setattr("kinformer.pages.atlas.member_card.arena_tasks", lambda: (task,))
    assert "Arena, novel: bits per byte of gpt(d=64) after 100 steps: 2.10 (1.85 to 2.35), rank 2." in _measured("gpt")
