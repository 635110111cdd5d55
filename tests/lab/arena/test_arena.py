"""The arena: the order of its trainings, its files, its ranks, and one arena run whole."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinformer.cli.__main__ import run
from kinformer.core.discover import members
from kinformer.lab.advise.estimates import reads_what
from kinformer.lab.arena import arena_task, entrant, schedule
from kinformer.lab.arena.arena_results import (
    ArenaRun,
    EntrantFacts,
    TaskResults,
    read_file,
    read_results,
    write_results,
)
from kinformer.lab.arena.arena_task import RATES, ArenaTask
from kinformer.lab.arena.ranking import pareto_front, standings
from kinformer.lab.arena.run_arena import open_results
from kinformer.lab.arena.schedule import SEEDS, TUNING, PlannedRun, count_missing, has_passed, next_run, steps_of
from kinformer.lab.compare.parameters import count_parameters
from kinformer.lab.data import task as task_data
from kinformer.lab.data.spec import read_spec
from kinformer.lab.errors import UserError
from kinformer.pages.arena_page import arena_page

TASK = ArenaTask("recall", "task=recall,pairs=4", 100, 4)
SAMPLED = ("transformer_xl", "longformer_lm", "universal_transformer", "average_attention", "lstm")
TEXT = ArenaTask("novel", "text=NOVEL", 100, 4)


def facts(ratio: float = 1.0, state: int | None = 100) -> EntrantFacts:
    return EntrantFacts("gpt(d=64)", 1000, state, 10, 10, ratio)


def arena_run(member: str, seed: int, test: float | None, rate: float = RATES[0]) -> ArenaRun:
    return ArenaRun(member, rate, seed, 100, test, test, (), 1.0, "here")


def results_of(scores: dict[str, tuple[float, ...]], task: ArenaTask = TASK) -> TaskResults:
    """Results with the scores of the compared seeds of each member, whose first rate is the best of its kind."""
    worse = 9.0 if task.is_text else 0.0
    runs = [
        arena_run(kind, TUNING, worse if place else 1.0, rate)
        for kind in dict.fromkeys(map(entrant.rate_kind, scores))
        for place, rate in enumerate(RATES)
    ]
    runs += [
        arena_run(name, seed, x) for name, values in scores.items() for seed, x in zip(SEEDS, values, strict=False)
    ]
    return TaskResults(
        task, "data", {"gzip -9": 3.0}, {name: facts() for name in scores}, sorted(runs, key=lambda run: run.key)
    )


def play(results: TaskResults, names: list[str], score: dict[str, float]) -> list[PlannedRun]:
    """Follow the schedule to its end, with a score for each member, and return the trainings in order."""
    order = []
    while (planned := next_run(results, names)) is not None:
        order.append(planned)
        results.facts.setdefault(planned.member, facts())
        peak = 0.1 * (planned.rate == RATES[1])  # the middle rate is the best
        results.runs.append(arena_run(planned.member, planned.seed, score[planned.member] + peak, planned.rate))
        assert len(order) < 100
    return order


def test_every_member_that_generates_text_takes_part_once_and_has_the_rate_of_its_kind() -> None:
    names = entrant.entrants()
    assert len(names) == len(set(names))
    assert {*names, *entrant.LEFT_OUT} == {name for name in members() if reads_what(name) == "text"}
    assert len(entrant.KINDS) <= 12
    assert entrant.rate_kind("bloom") == "llama" and entrant.rate_kind("reformer") == "reformer"
    for name in ("bert", "spalm", "nonsense"):
        with pytest.raises(UserError, match=name):
            entrant.rate_kind(name)


@pytest.mark.parametrize("name", entrant.entrants())
def test_entrants_have_as_many_parameters_as_gpt_and_smaller_windows_than_a_row(name: str, prove: bool) -> None:
    if not prove and name not in SAMPLED:
        pytest.skip("make prove")
    baseline, choice = count_parameters(entrant.entrant("gpt", 64)), count_parameters(entrant.entrant(name, 64))
    assert baseline and choice and abs(choice - baseline) <= 0.1 * baseline
    for keyword, value in entrant.entrant(name, 64).keywords.items():
        if keyword in entrant.PARTS:
            assert value <= 64 * 3 // 4


@pytest.mark.parametrize("name", entrant.entrants())
def test_a_task_may_set_the_number_of_heads_of_all_members(name: str, prove: bool) -> None:
    if not prove and name not in (*SAMPLED, "llama", "routing_transformer"):
        pytest.skip("make prove")
    baseline, choice = entrant.entrant("gpt", 16, 1), entrant.entrant(name, 16, 1)
    sizes = count_parameters(baseline), count_parameters(choice)
    assert all(sizes) and abs(sizes[1] - sizes[0]) <= 0.1 * sizes[0]
    choice.build(0)  # a number of heads that the member refuses would raise
    without = ("average_attention", "lstm", "act_rnn")  # no heads, or only in its encoder
    assert choice.keywords.get("heads") == (None if name in without else 2 if name == "routing_transformer" else 1)


def test_gpt_comes_first_then_the_rates_of_each_kind_then_the_seeds_at_the_best_rate() -> None:
    results = TaskResults(TASK, "data", {})
    names = ["linear_transformer", "lstm"]
    total = count_missing(results, names)
    order = play(results, names, {"gpt": 0.85, "linear_transformer": 0.5, "lstm": 0.3})
    best = RATES[1]
    assert order == [
        *(PlannedRun("gpt", rate, 0) for rate in RATES),
        *(PlannedRun("gpt", best, seed) for seed in SEEDS),
        *(PlannedRun("linear_transformer", rate, 0) for rate in RATES),
        *(PlannedRun("linear_transformer", best, seed) for seed in SEEDS),
        PlannedRun("lstm", best, SEEDS[0]),
    ]
    assert total == len(order) and count_missing(results, names) == 0


def test_a_task_that_gpt_does_not_learn_compares_no_members() -> None:
    results = TaskResults(TASK, "data", {})
    order = play(results, ["llama"], {"gpt": 0.7})
    assert {planned.member for planned in order} == {"gpt"} and has_passed(results) is False
    assert count_missing(results, ["llama"]) == 0
    assert has_passed(results_of({"gpt": (0.95, 0.95)})) is None
    assert has_passed(results_of({"gpt": (0.95, 0.9, 0.95)})) is True
    assert has_passed(results_of({"gpt": (0.95, 0.89, 0.95)})) is False
    assert has_passed(results_of({"gpt": (2.9, 2.8, 2.9)}, TEXT)) is True
    assert has_passed(results_of({"gpt": (2.9, 3.1, 2.9)}, TEXT)) is False


def test_lower_bits_and_higher_accuracies_are_better_rates() -> None:
    runs = [arena_run("gpt", 0, score, rate) for score, rate in zip((2.0, 1.0, 3.0), RATES, strict=True)]
    assert schedule.best_rate(TaskResults(TEXT, "", {}, {}, runs), "gpt") == RATES[1]
    assert schedule.best_rate(TaskResults(TASK, "", {}, {}, runs), "gpt") == RATES[2]
    assert schedule.best_rate(TaskResults(TASK, "", {}, {}, runs[:2]), "gpt") is None
    stopped = [arena_run("gpt", 0, None, rate) for rate in RATES]
    assert schedule.best_rate(TaskResults(TASK, "", {}, {}, stopped), "gpt") == RATES[0]


def test_a_member_with_slow_steps_trains_for_the_time_of_gpt() -> None:
    results = TaskResults(TASK, "", {}, {"gpt": facts(), "reformer": facts(4.9), "calm": facts(8.0)})
    assert [steps_of(results, name) for name in results.facts] == [100, 100, 12]


def test_members_whose_intervals_overlap_share_a_rank() -> None:
    scores = {"gpt": (0.90, 0.91, 0.92), "llama": (0.90, 0.92, 0.93), "reformer": (0.50, 0.51, 0.52)}
    results = results_of({**scores, "lstm": (0.1,)})
    results.facts["calm"] = facts(8.0)
    results.runs += [arena_run("calm", seed, 0.99) for seed in SEEDS]
    ranks = {row.member: row.rank for row in standings(results)}
    assert ranks == {"gpt": 1, "llama": 1, "reformer": 3, "lstm": None, "calm": None}
    bits = results_of(scores, TEXT)
    assert {row.member: row.rank for row in standings(bits)} == {"gpt": 2, "llama": 2, "reformer": 1}
    assert [row.member for row in standings(bits)][0] == "reformer"


def test_a_front_holds_the_points_that_no_other_point_dominates() -> None:
    points = {"a": (1.0, 3.0), "b": (2.0, 2.0), "c": (3.0, 2.5), "d": (4.0, 1.0), "e": (2.0, 2.2)}
    for sign in (1, -1):
        dominated = {
            name
            for name, (cost, score) in points.items()
            for other, (x, y) in points.items()
            if other != name and x <= cost and sign * y <= sign * score
        }
        assert {*pareto_front(points, sign)} == points.keys() - dominated


def test_files_of_several_machines_are_merged_and_other_data_is_refused(tmp_path: Path) -> None:
    first, second = results_of({"gpt": (0.95, 0.9, 0.95)}), results_of({"gpt": (0.1,), "llama": (0.5,)})
    write_results(first, tmp_path / "recall.json")
    write_results(second, tmp_path / "second_machine.json")
    merged = read_results(tmp_path)["recall"]
    assert read_file(tmp_path / "recall.json") == first
    assert {run.key: run.test for run in merged.runs} == {
        **{run.key: run.test for run in second.runs},
        **{run.key: run.test for run in first.runs},
    }
    assert merged.facts.keys() == {"gpt", "llama"}
    write_results(replace(second, task=replace(TASK, steps=7)), tmp_path / "second_machine.json")
    with pytest.raises(ValueError, match="differ in task"):
        read_results(tmp_path)
    write_results(replace(second, runs=[replace(second.runs[0], steps=7)]), tmp_path / "second_machine.json")
    with pytest.raises(ValueError, match="trainings of gpt on 'recall' differ: got 7 steps"):
        read_results(tmp_path)
    (tmp_path / "second_machine.json").write_text('{"task": 3}')
    with pytest.raises(ValueError, match="holds no results of the arena"):
        read_results(tmp_path)


@pytest.fixture(scope="module")
def small_arena(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of an arena of two members on a task that gpt passes at once."""
    folder = tmp_path_factory.mktemp("arena")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena_task, "TASKS", (ArenaTask("tiny", "task=recall,pairs=2", 2, 2), TEXT))
        patch.setattr(arena_task, "SOLVED", 0.0)
        patch.setattr(task_data, "MOST", 16)  # rows of a measurement
        words = ["arena", "gpt", "lstm", "--out", str(folder)]
        assert run(words) == 0
        before = (folder / "tiny.json").read_bytes()
        assert run(words) == 2  # it holds results
        lines = before.splitlines(keepends=True)
        cut = [line for line in lines if b'"lstm", "rate"' not in line]  # as if it had been stopped
        (folder / "tiny.json").write_bytes(b"".join(cut).replace(b"},\n ]", b"}\n ]"))
        assert run([*words, "--resume"]) == 0
    return folder, json.loads(before)


def test_the_command_trains_ranks_and_resumes(small_arena: tuple[Path, dict[str, Any]]) -> None:
    folder, before = small_arena
    after = json.loads((folder / "tiny.json").read_text())
    assert len(after["runs"]) == len(before["runs"]) == 10  # gpt, the rates of linear_transformer, and one seed of lstm

    def score(record: dict[str, Any]) -> list[tuple[Any, ...]]:
        return sorted((run["member"], run["rate"], run["seed"], run["test"]) for run in record["runs"])

    assert score(after) == score(before)  # the repeated training gives the same score
    page = (folder / "index.html").read_text()
    assert "lstm(" in page and "<svg" in page and "95% interval" in page


def test_wrong_names_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["arena", "bert"], "bert takes no part in the arena"),
        (["arena", "--task", "mqarr"], "there is no task 'mqarr' in the arena"),
        (["arena", "--task", "novel"], "needs a text: give --novel FILE"),
        (["arena", "--task", "listops", "--novel", "x.txt"], "--novel has no effect without the task novel"),
        (["arena", "gpt", "--others"], "--others has no effect with names of members"),
    ):
        assert run([*words, "--out", str(tmp_path / "out")]) == 2
        assert message in (error := capsys.readouterr().err) and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_page_says_why_a_task_compares_no_members_and_escapes_names() -> None:
    failed = results_of({"gpt": (0.5, 0.5, 0.5)})
    assert b"does not reach" in arena_page({"recall": failed}) and b"<table>" in arena_page({"recall": failed})
    assert b"&lt;b&gt;" in arena_page({"x": replace(failed, data="<b>")})


def test_results_of_other_data_stop_a_task_before_it_trains(tmp_path: Path) -> None:
    write_results(results_of({"gpt": (0.5,)}), tmp_path / "recall.json")
    with pytest.raises(ValueError, match="differ in data"):
        open_results(TASK, read_spec(TASK.data), tmp_path)
