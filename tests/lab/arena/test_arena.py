"""The arena: the order of its training runs, its files, its ranks, and one arena run whole."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.cli.__main__ import run
from kinformer.core.discover import members
from kinformer.core.keywords import signature
from kinformer.lab.advise.estimates import reads_what
from kinformer.lab.arena import arena_task, entrant, run_arena, schedule
from kinformer.lab.arena.arena_results import (
    ArenaRun,
    EntrantFacts,
    TaskResults,
    read_file,
    read_results,
    write_results,
)
from kinformer.lab.arena.arena_task import RATES, ArenaTask
from kinformer.lab.arena.ranking import describe_uncompared_runs, pareto_front, rank_members
from kinformer.lab.arena.run_arena import measure_facts, open_results, row_length, score_test
from kinformer.lab.arena.schedule import SEEDS, TUNING, PlannedRun, count_missing, count_steps, has_passed, next_run
from kinformer.lab.compare.parameters import count_parameters
from kinformer.lab.data import task as task_data
from kinformer.lab.data.spec import read_spec
from kinformer.lab.errors import INTERRUPTED, UserError
from kinformer.lab.member_choice import find_member_function
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.folder_lock import lock_folder
from kinformer.lab.train.train import train
from kinformer.pages.arena_page import arena_page, front_plots, task_table

TASK = ArenaTask("recall", "task=recall,pairs=4", 100, 4)
SAMPLED = ("transformer_xl", "longformer_lm", "universal_transformer", "average_attention", "lstm")
# the sizes of PARTS in rows of 64 tokens: the part of 64, rounded up to a multiple of 4
SIZES = {
    **{"segment": 24, "memory": 24, "compressed": 8, "longest": 32, "window": 16, "top": 48},
    **{"local": 8, "block": 8, "stride": 8, "summary": 4, "buckets": 8},
}
TEXT = ArenaTask("novel", "text=NOVEL", 100, 4)


def facts(ratio: float = 1.0, state: int | None = 100) -> EntrantFacts:
    return EntrantFacts("gpt(d=64)", 1000, state, 10, 10, ratio)


def arena_run(
    member: str, seed: int, test: float | None, rate: float = RATES[0], valid: float | None = None, steps: int = 100
) -> ArenaRun:
    return ArenaRun(member, rate, seed, steps, valid, test, (), 1.0, "here")


def results_of(scores: Mapping[str, tuple[float | None, ...]], task: ArenaTask = TASK) -> TaskResults:
    """Results with the scores of the compared seeds of each member.

    The first rate of its group is the best on validation data, and the worst on test data.
    """
    worse = 9.0 if task.is_text else 0.0
    runs = [
        arena_run(group, TUNING, 1.0 if place else worse, rate, worse if place else 1.0)
        for group in dict.fromkeys(map(entrant.find_rate_group, scores))
        for place, rate in enumerate(RATES)
    ]
    runs += [
        arena_run(name, seed, x) for name, values in scores.items() for seed, x in zip(SEEDS, values, strict=False)
    ]
    return TaskResults(
        task, "data", {"gzip -9": 3.0}, {name: facts() for name in scores}, sorted(runs, key=lambda run: run.key)
    )


def play(results: TaskResults, names: list[str], score: dict[str, float]) -> list[PlannedRun]:
    """Follow the schedule to its end, with a score for each member, and return the runs in order."""
    order = []
    while (planned := next_run(results, names)) is not None:
        order.append(planned)
        results.facts.setdefault(planned.member, facts())
        peak = 0.1 * (planned.rate == RATES[1])  # the middle rate is the best
        value = score[planned.member] + peak
        test = -value if planned.seed == TUNING else value  # another rate is the best on test data
        results.runs.append(arena_run(planned.member, planned.seed, test, planned.rate, value))
        assert len(order) < 100
    return order


def test_every_member_that_generates_text_takes_part_once_and_has_the_rate_of_its_group() -> None:
    names = entrant.entrants()
    assert len(names) == len(set(names))
    assert {*names, *entrant.LEFT_OUT} == {name for name in members() if reads_what(name) == "text"}
    assert len(entrant.RATE_GROUPS) == 12
    assert entrant.find_rate_group("bloom") == "llama" and entrant.find_rate_group("reformer") == "reformer"
    for name in ("bert", "spalm", "nonsense"):
        with pytest.raises(UserError, match=name):
            entrant.find_rate_group(name)


@pytest.mark.parametrize("name", entrant.entrants())
def test_entrants_have_as_many_parameters_as_gpt_and_smaller_windows_than_a_row(name: str, prove: bool) -> None:
    if not prove and name not in SAMPLED:
        pytest.skip("make prove")
    baseline, count = count_parameters(entrant.entrant("gpt", 64)), count_parameters(entrant.entrant(name, 64))
    assert baseline and count and abs(count - baseline) <= 0.1 * baseline
    choice, defaults = entrant.entrant(name, 64), signature(find_member_function(name)).parameters
    for keyword, value in choice.keywords.items():
        if keyword in entrant.PARTS and defaults[keyword].default is not None:
            assert value == min(SIZES[keyword], defaults[keyword].default)


def test_windows_and_memories_are_parts_of_a_row() -> None:
    for name, sizes in (
        ("transformer_xl", {"segment": 24, "memory": 24}),
        ("compressive_transformer", {"segment": 24, "memory": 24, "compressed": 8}),
        ("longformer_lm", {"top": 48}),
        ("sparse_transformer", {"stride": 8, "summary": 4}),
        ("reformer", {"local": 8, "buckets": 8}),
    ):
        keywords = entrant.entrant(name, 64).keywords
        assert {keyword: keywords[keyword] for keyword in sizes} == sizes


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


def test_gpt_comes_first_then_the_rates_of_each_group_then_the_seeds_at_the_best_rate() -> None:
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
    scores = ((2.0, 1.0), (1.0, 2.0), (3.0, 1.5))  # on validation and test data, with opposite orders
    runs = [arena_run("gpt", 0, test, rate, valid) for (valid, test), rate in zip(scores, RATES, strict=True)]
    assert schedule.best_rate(TaskResults(TEXT, "", {}, {}, runs), "gpt") == RATES[1]
    assert schedule.best_rate(TaskResults(TASK, "", {}, {}, runs), "gpt") == RATES[2]
    assert schedule.best_rate(TaskResults(TASK, "", {}, {}, runs[:2]), "gpt") is None
    stopped = [arena_run("gpt", 0, None, rate) for rate in RATES]
    assert schedule.best_rate(TaskResults(TASK, "", {}, {}, stopped), "gpt") == RATES[0]


def test_a_member_with_slow_steps_trains_for_the_time_of_gpt() -> None:
    results = TaskResults(TASK, "", {}, {"gpt": facts(), "reformer": facts(4.9), "calm": facts(8.0)})
    assert [count_steps(results, name) for name in results.facts] == [100, 100, 12]


def test_a_rank_is_one_more_than_the_members_whose_whole_interval_is_better() -> None:
    scores = {"gpt": (0.90, 0.91, 0.92), "llama": (0.90, 0.92, 0.93), "reformer": (0.50, 0.51, 0.52)}
    results = results_of({**scores, "lstm": (0.1,)})
    results.facts["calm"] = facts(8.0)
    results.runs += [arena_run("calm", seed, 0.99) for seed in SEEDS]
    ranks = {row.member: row.rank for row in rank_members(results)}
    assert ranks == {"gpt": 1, "llama": 1, "reformer": 3, "lstm": None, "calm": None}
    bits = results_of(scores, TEXT)
    assert {row.member: row.rank for row in rank_members(bits)} == {"gpt": 2, "llama": 2, "reformer": 1}
    assert [row.member for row in rank_members(bits)][0] == "reformer"


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
    with pytest.raises(ValueError, match="training runs of gpt on 'recall' differ: got 7 steps"):
        read_results(tmp_path)
    (tmp_path / "second_machine.json").write_text('{"task": 3}')
    with pytest.raises(
        ValueError, match=r"got other content .*expected a result file of kinformer arena\. Move it out"
    ):
        read_results(tmp_path)
    (tmp_path / "second_machine.json").write_text("{}")
    with pytest.raises(ValueError, match="got JSON without the field 'task', expected a result file"):
        read_results(tmp_path)


def test_slow_members_may_have_other_steps_on_another_machine(tmp_path: Path) -> None:
    steps = {"fast": 100, "slow": 12, "slower": 10}
    ratios = {"fast": 4.9, "slow": 8.1, "slower": 9.9}
    for number, name in enumerate(steps):
        results = results_of({"gpt": (0.95, 0.96, 0.97)})
        results.facts["reformer"] = facts(ratios[name])
        results.runs += [arena_run("reformer", TUNING, 0.5, rate, 0.5, steps[name]) for rate in RATES]
        results.runs.append(arena_run("reformer", SEEDS[number], 0.5, RATES[0], 0.5, steps[name]))
        write_results(results, tmp_path / f"{name}.json")
    for order in (("fast", "slow", "slower"), ("slower", "slow", "fast")):
        merged = read_file(tmp_path / f"{order[0]}.json")
        for name in order[1:]:
            merged.add(read_file(tmp_path / f"{name}.json"))
        row = next(row for row in rank_members(merged) if row.member == "reformer")
        assert row.steps == (10, 100) and row.facts.is_slow and row.rank is None
        assert task_table([row])[0][-1] == "10 to 100"


def test_the_same_data_under_another_name_are_merged(tmp_path: Path) -> None:
    first = replace(results_of({"gpt": (0.95,)}), data="a.txt, fingerprint sha256:01")
    write_results(first, tmp_path / "a.json")
    write_results(replace(first, data="b.txt, fingerprint sha256:01"), tmp_path / "b.json")
    assert read_results(tmp_path)["recall"].data == "a.txt, fingerprint sha256:01"
    write_results(replace(first, data="a.txt, fingerprint sha256:02"), tmp_path / "b.json")
    with pytest.raises(ValueError, match="differ in data"):
        read_results(tmp_path)


def test_runs_at_an_earlier_rate_and_of_unknown_members_are_reported_and_not_compared() -> None:
    results = results_of({"gpt": (0.95, 0.96, 0.97), "lstm": (0.5,)})
    assert list(describe_uncompared_runs(results)) == []
    results.facts["ngram"] = facts()
    results.runs += [arena_run("lstm", 1, 0.9, RATES[2]), arena_run("ngram", 1, 0.9), arena_run("llama", 2, 0.9)]
    sentences = [
        "Runs of lstm that are not compared: seed 1 at 0.015. The rate of the group is now 0.0015.",
        "ngram is not compared, because it takes no part in the arena any more.",
        "Runs of llama that are not compared: seed 2 at 0.0015. The rate of the group is not tuned yet.",
    ]
    assert list(describe_uncompared_runs(results)) == sentences
    page = arena_page({"recall": results}).decode()
    assert all(sentence in page for sentence in sentences)
    assert {row.member: row.scores for row in rank_members(results)} == {"gpt": (0.95, 0.96, 0.97), "lstm": (0.5,)}


def test_members_with_stopped_runs_are_shown_without_a_rank() -> None:
    scores = {"gpt": (0.95, 0.96, 0.97), "llama": (0.99, None, 0.99), "reformer": (None, None, None), "lstm": (None,)}
    results = results_of(scores)
    cells = {row.member: (row.rank, row.mean, row.interval) for row in rank_members(results)}
    assert list(cells) == ["gpt", "llama", "reformer", "lstm"]
    assert cells["llama"] == (None, 0.99, None) and cells["reformer"] == cells["lstm"] == (None, None, None)
    table = task_table(rank_members(results))
    assert [row[1] for row in table] == ["1", "1 of 3 stopped", "3 of 3 stopped", "1 of 1 stopped"]
    assert [row[2] for row in table] == ["0.960", "0.990", "", ""]
    assert all(plot.points.keys() == {"gpt"} for plot in front_plots(results))


def test_one_answer_of_512_does_not_decide_a_rank() -> None:
    results = results_of({"gpt": (1.0,) * 3, "llama": (511 / 512,) * 3, "reformer": (0.95,) * 3})
    assert {row.member: row.rank for row in rank_members(results)} == {"gpt": 1, "llama": 1, "reformer": 3}


def test_the_table_of_a_task_has_the_numbers_of_the_results() -> None:
    results = results_of({"gpt": (2.0, 2.1, 2.2), "lstm": (2.5,)}, TEXT)
    results.facts["gpt"] = EntrantFacts("gpt(d=64)", 124_672, 132_000, 10, 1_260_000, 1.0)
    results.facts["lstm"] = EntrantFacts("lstm(d=96)", 130_000, None, 10, 512, 1.254)
    half = 4.302652729911275 * 0.1 / 3**0.5  # Student's t with 2 degrees of freedom
    assert task_table(rank_members(results)) == [
        ["gpt(d=64)", "1", "2.100", f"{2.1 - half:.3f} to {2.1 + half:.3f}"]
        + ["132 KB", "1.00", "1.26 MB", "124,672", "0.0015 (smallest tried)", "100"],
        ["lstm(d=96)", "", "2.500", ""] + ["none", "1.25", "512 B", "130,000", "0.0015 (smallest tried)", "100"],
    ]


def test_fronts_have_ranked_members_only_and_a_state_has_a_cost_only_if_it_exists() -> None:
    names = ("gpt", "llama", "reformer", "performer", "lstm", "calm")
    tests = ((2.75,) * 3, (2.5,) * 3, (3.0,) * 3, (2.875,) * 3, (1.0,), (1.0,) * 3)
    results = results_of(dict(zip(names, tests, strict=True)), TEXT)
    costs = ((1.0, 100), (2.0, 200), (1.5, 50), (1.0, None), (0.1, 1), (8.0, 1))
    results.facts = {name: facts(*cost) for name, cost in zip(names, costs, strict=True)}
    state, time, *_ = front_plots(results)
    assert state.points.keys() == {"gpt", "llama", "reformer"}
    assert (list(state.lines[0].x), list(state.lines[0].y)) == ([50, 100, 200], [3.0, 2.75, 2.5])
    assert time.points.keys() == {"gpt", "llama", "reformer", "performer"}
    assert (list(time.lines[0].x), list(time.lines[0].y)) == ([1.0, 2.0], [2.75, 2.5])
    assert front_plots(results_of({"gpt": (2.7,)}, TEXT)) == []  # a single seed


def test_the_score_on_test_data_is_that_of_the_test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_data, "MOST", 40)  # rows of a measurement
    data: Any = read_spec("task=memorization")
    model: Any = entrant.entrant("gpt", data.longest_length(0)).build(3)
    train(model, data, StepBudget(30), replace(TASK, batch=32).settings(5e-3, 1))

    def accuracy(split: str) -> float:
        """Right answers over all answers, one row at a time."""
        right = []
        for row in getattr(data, split).rows(40):
            tokens = torch.tensor([list(row.text)])
            logits = model.eval().logits(tokens[:, :-1]).y[0]
            right += [
                int(logits[place - 1].argmax()) == row.text[place]
                for place, is_answer in enumerate(row.answer_mask)
                if is_answer
            ]
        return sum(right) / len(right)

    assert 0 < accuracy("test") < 1 and accuracy("test") != accuracy("valid")
    assert score_test(model, data, TASK) == pytest.approx(accuracy("test"))


def test_the_facts_of_a_member_are_its_own_sizes() -> None:
    task = ArenaTask("tiny", "task=recall,pairs=2", 2, 2)
    data = read_spec(task.data)
    measured = measure_facts("lstm", task, data)
    choice = entrant.entrant("lstm", row_length(task, data))
    assert (measured.text, measured.parameters) == (choice.text, count_parameters(choice))
    layers, width = choice.keywords["depth"], choice.keywords["d"]
    assert measured.state_bytes and measured.state_bytes >= 4 * 2 * layers * width  # hidden and cell state in float32
    assert measured.time_ratio > 0 and measured.time_ratio != 1.0 and measured.saved_bytes > 0
    assert measure_facts("gpt", task, data).time_ratio == 1.0


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
        with lock_folder(folder):
            assert run([*words, "--resume"]) == 2  # another command writes there
        lines = before.splitlines(keepends=True)
        cut = [line for line in lines if b'"lstm", "rate"' not in line]  # as if it had been stopped
        (folder / "tiny.json").write_bytes(b"".join(cut).replace(b"},\n ]", b"}\n ]"))
        assert run([*words, "--resume"]) == 0
    return folder, json.loads(before)


def test_the_command_trains_ranks_and_resumes(small_arena: tuple[Path, dict[str, Any]]) -> None:
    folder, before = small_arena
    after = json.loads((folder / "tiny.json").read_text())
    assert len(after["runs"]) == len(before["runs"]) == 10  # gpt, the rates of linear_transformer, one seed of lstm

    def score(record: dict[str, Any]) -> list[tuple[Any, ...]]:
        return sorted((run["member"], run["rate"], run["seed"], run["test"]) for run in record["runs"])

    assert score(after) == score(before)  # the repeated training gives the same score
    page = (folder / "index.html").read_text()
    assert "lstm(" in page and "<svg" in page and "95% interval" in page


def test_wrong_names_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["arena", "bert"], "unknown arena member: got 'bert', expected a member that generates text"),
        (["arena", "--task", "mqarr"], "there is no task 'mqarr' in the arena"),
        (["arena", "--task", "novel"], "needs a text: give --novel FILE"),
        (["arena", "--task", "listops", "--novel", "x.txt"], "--novel has no effect without the task novel"),
        (["arena", "gpt", "--others"], "--others has no effect with names of members"),
    ):
        assert run([*words, "--out", str(tmp_path / "out")]) == 2
        assert message in (error := capsys.readouterr().err) and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str, int], BaseException]:
    """Errors to raise in place of the run of a task, a member and a seed; other runs end at once."""
    errors: dict[tuple[str, str, int], BaseException] = {}

    def train_run(planned: PlannedRun, results: TaskResults, *_: Any) -> ArenaRun:
        if (error := errors.get((results.task.name, planned.member, planned.seed))) is not None:
            raise error
        return arena_run(planned.member, planned.seed, 0.95, planned.rate, 0.95)

    tasks = tuple(ArenaTask(name, "task=recall,pairs=2", 100, 2) for name in ("first", "second"))
    monkeypatch.setattr(arena_task, "TASKS", tasks)
    monkeypatch.setattr(run_arena, "train_run", train_run)
    monkeypatch.setattr(run_arena, "measure_facts", lambda *_: facts())
    return errors


def test_a_failed_run_is_reported_and_the_others_are_trained(
    fake_runs: dict[tuple[str, str, int], BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["arena", "gpt", "performer", "rfa", "linear_transformer", "lstm", "--out", str(tmp_path)]
    fake_runs["first", "performer", TUNING] = ValueError("planted < fault")
    fake_runs["first", "linear_transformer", SEEDS[0]] = RuntimeError("another fault")
    assert run(words) == 1
    assert "runs failed: performer on first, linear_transformer on first." in capsys.readouterr().err
    page = (tmp_path / "index.html").read_text()
    assert "A run of performer on first failed: ValueError: planted &lt; fault" in page
    assert "A run of linear_transformer on first failed: RuntimeError: another fault" in page
    results = read_results(tmp_path)
    assert {run.member for run in results["first"].runs} == {"gpt", "linear_transformer", "lstm"}  # rfa has no rate
    assert count_missing(results["second"], words[1:6]) == 0
    fake_runs.clear()
    assert run([*words, "--resume"]) == 0
    assert count_missing(read_results(tmp_path)["first"], words[1:6]) == 0
    assert "failed" not in (tmp_path / "index.html").read_text()


def test_the_page_is_written_after_each_task_and_after_an_interruption(
    fake_runs: dict[tuple[str, str, int], BaseException], tmp_path: Path
) -> None:
    fake_runs["second", "lstm", SEEDS[0]] = KeyboardInterrupt()
    assert run(["arena", "gpt", "lstm", "--out", str(tmp_path)]) == INTERRUPTED
    page = (tmp_path / "index.html").read_text()
    assert 'id="first"' in page and 'id="second"' in page


def test_the_page_says_why_a_task_compares_no_members_and_escapes_names() -> None:
    failed = results_of({"gpt": (0.5, 0.5, 0.5)})
    assert b"does not reach" in arena_page({"recall": failed}) and b"<table>" in arena_page({"recall": failed})
    assert b"&lt;b&gt;" in arena_page({"x": replace(failed, data="<b>")})


def test_results_of_other_data_stop_a_task_before_it_trains(tmp_path: Path) -> None:
    write_results(results_of({"gpt": (0.5,)}), tmp_path / "recall.json")
    with pytest.raises(ValueError, match="differ in data"):
        open_results(TASK, read_spec(TASK.data), tmp_path)
