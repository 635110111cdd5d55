"""run_arena: train the entrants of the arena, one after the other, and write each result to its file."""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import cast

from kinformer.core.model import Model
from kinformer.lab.arena.arena_results import ArenaRun, EntrantFacts, TaskResults, read_results, write_results
from kinformer.lab.arena.arena_task import NOVEL, SAMPLE, ArenaTask
from kinformer.lab.arena.entrant import BASELINE, entrant, find_rate_group
from kinformer.lab.arena.schedule import TUNING, PlannedRun, count_missing, count_steps, next_run
from kinformer.lab.compare.step_time import step_seconds
from kinformer.lab.cost.cost import sample_rows
from kinformer.lab.cost.row_costs import count_flops, count_state
from kinformer.lab.cost.saved_bytes import saved_bytes
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data
from kinformer.lab.data.spec import read_spec
from kinformer.lab.data.text import TextData
from kinformer.lab.machine import describe_machine
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.evaluate import evaluate, evaluate_batches
from kinformer.lab.train.loop import TrainingStopped
from kinformer.lab.train.progress import ProgressDisplay, Status
from kinformer.lab.train.train import train

TIMED = 3  # rounds in which the steps of gpt and of a member are timed in turn
ArenaProgress = Callable[[int, str], None]


def read_data(task: ArenaTask, novel: Path | None) -> Data:
    """Return the data of a task.

    task: the task.
    novel: the text of the task whose data is NOVEL.

    Errors: ValueError for a text that cannot be read, or if the task needs a text and none is given.
    """
    if task.data != NOVEL:
        return read_spec(task.data)
    if novel is None:
        raise ValueError(f"the task {task.name!r} needs a text: give --novel FILE, such as a book of Project Gutenberg")
    return read_spec(f"text={novel}")


def open_results(task: ArenaTask, data: Data, folder: Path) -> TaskResults:
    """Return the results of a task in all files of a folder, which may have none yet.

    task: the task.
    data: its data.
    folder: the folder of the results.

    Errors: ValueError if the folder holds results of other data or of another budget.
    """
    model = entrant(BASELINE, row_length(task, data), task.heads).build(0)
    levels = {name: float(level) for name, level in data.levels(model, "test", task.length, SAMPLE).items()}
    name = Path(data.name.removeprefix("text=")).name if task.is_text else data.name
    results = TaskResults(task, f"{name}, fingerprint {data.fingerprint[:16]}", levels)
    if (earlier := read_results(folder).get(task.name)) is not None:
        results.add(earlier)
    return results


def row_length(task: ArenaTask, data: Data) -> int:
    """Return the tokens of a row of a task.

    task: the task.
    data: its data.
    """
    return data.longest_length(task.length) or task.length


def run_task(
    results: TaskResults, data: Data, members: Sequence[str], folder: Path, on_progress: ArenaProgress
) -> dict[str, str]:
    """Train the members that have no result of a task yet, and write its file after each training run.

    The runs are added to the results. A task that gpt does not learn ends after gpt. If a run fails with an exception,
    the runs that depend on it are left out, and the other members train all the same.

    results: the results of the task so far, as `open_results` returns them.
    data: the data of the task.
    members: names of the members.
    folder: the folder of the results.
    on_progress: called with the number of finished runs and a note.

    Returns the error messages of failed runs by the name of the member.

    Errors: OSError if the folder cannot be written.
    """
    task, failures, waiting = results.task, dict[str, str](), list(members)
    done, total = 0, count_missing(results, members)
    while (run := next_run(results, waiting)) is not None:
        note = f"{task.name}: {run.member} at {run.rate:g}, seed {run.seed} ({done + 1} of {total})"
        try:
            if run.member not in results.facts:
                on_progress(done, f"{task.name}: costs of {run.member}")
                results.facts[run.member] = measure_facts(run.member, task, data)
            finished = train_run(run, results, data, _StepDisplay(on_progress, done, note))
        except Exception as error:  # the other members are trained all the same, and the page says why this one is not
            failures[run.member] = f"{type(error).__name__}: {error}"
            if run.member == BASELINE:
                break
            waiting = [name for name in waiting if not _depends_on(name, run)]
        else:
            results.runs.append(finished)
            write_results(results, folder / f"{task.name}.json")
            done += 1
    return failures


def _depends_on(member: str, run: PlannedRun) -> bool:
    """Return whether a member cannot be trained without a run."""
    return member == run.member or (run.seed == TUNING and find_rate_group(member) == run.member)


def measure_facts(member: str, task: ArenaTask, data: Data) -> EntrantFacts:
    """Return the sizes and costs of a member on the rows of a task.

    member: name of the member.
    task: the task.
    data: its data.
    """
    rows = row_length(task, data)
    choice = entrant(member, rows, task.heads)
    model = choice.build(0)
    ratios = [1.0]
    if member != BASELINE:
        gpt = entrant(BASELINE, rows, task.heads).build(0)
        ratios = [_step_ratio(model, gpt, task.batch, rows) for _ in range(TIMED)]
    model = choice.build(0)
    batch = sample_rows(model, 1, rows)
    return EntrantFacts(
        choice.text,
        sum(parameter.numel() for parameter in model.parameters()),
        count_state(model, rows),
        count_flops(model, rows),
        saved_bytes(model, batch),
        round(median(ratios), 3),
    )


def _step_ratio(model: Model, baseline: Model, batch: int, rows: int) -> float:
    return step_seconds(model, batch, rows) / step_seconds(baseline, batch, rows)


class _StepDisplay(ProgressDisplay):
    """A display that reports the steps of the present run in a note.

    on_progress: called with the number of finished runs and the note.
    done: runs that were finished before.
    note: words about the present run.
    """

    def __init__(self, on_progress: ArenaProgress, done: int, note: str) -> None:
        self.on_progress, self.done, self.text = on_progress, done, note

    def status(self, status: Status) -> None:
        self.on_progress(self.done, f"{self.text}, step {status.step:,}")


def train_run(run: PlannedRun, results: TaskResults, data: Data, show: ProgressDisplay | None = None) -> ArenaRun:
    """Train a member as planned, and return its scores. Nothing is saved besides.

    run: member, rate and seed.
    results: the results of the task, with the facts of the member.
    data: the data of the task.
    show: display of the progress.
    """
    task = results.task
    steps, settings = count_steps(results, run.member), task.settings(run.rate, run.seed)
    model = entrant(run.member, row_length(task, data), task.heads).build(run.seed)
    machine = describe_machine()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about a member would be repeated for each run
            history = train(model, data, StepBudget(steps), settings, show=show)
    except TrainingStopped:
        return ArenaRun(run.member, run.rate, run.seed, steps, None, None, (), 0.0, machine)
    curve = tuple((point.step, round(point.valid, 5)) for point in history.points)
    test, seconds = round(score_test(model, data, task), 5), round(history.seconds, 1)
    return ArenaRun(run.member, run.rate, run.seed, steps, curve[-1][1], test, curve, seconds, machine)


def score_test(model: Model, data: Data, task: ArenaTask) -> float:
    """Return the score of a model on test data: bits per byte of a text, or the accuracy of answers.

    model: the model.
    data: the data of the task.
    task: the task.
    """
    if isinstance(data, TextData):
        return evaluate(model, data.part("test"), task.length, SAMPLE, probe=False).value
    split: Data = replace(data, valid=data.test)  # type: ignore[type-var, attr-defined]
    stream = cast(Batches, split.stream(model, 1, task.length, 0, sys.maxsize))
    return evaluate_batches(model, stream.validation_batches).value
