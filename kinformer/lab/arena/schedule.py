"""The order of the trainings of the arena: the next one follows from the results so far."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kinformer.lab.arena.arena_results import ArenaRun, TaskResults
from kinformer.lab.arena.arena_task import RATES
from kinformer.lab.arena.entrant import BASELINE, KINDS, rate_kind

TUNING = 0  # seed of the trainings that only tune the rate
SEEDS = (1, 2, 3)  # seeds of the trainings that are compared
SLOW = 5.0  # a member with a larger time ratio trains for equal minutes


class PlannedRun(NamedTuple):
    """A training that is still missing.

    member: name of the member.
    rate: highest learning rate.
    seed: seed of the weights and batches.
    """

    member: str
    rate: float
    seed: int


def next_run(results: TaskResults, members: Sequence[str]) -> PlannedRun | None:
    """Return the next training of a task; None if all are done, or if gpt has not passed the task.

    results: the results of the task so far.
    members: names of the members that take part.
    """
    return next(_missing(results, members), None)


def count_missing(results: TaskResults, members: Sequence[str]) -> int:
    """Return the number of trainings that are still missing, if gpt passes the task.

    results: the results of the task so far.
    members: names of the members that take part.
    """
    if has_passed(results) is False:
        return 0
    done = {run.key for run in results.runs}
    tuned = dict.fromkeys((BASELINE, *(rate_kind(name) for name in members)))
    tuning = sum((kind, rate, TUNING) not in done for kind in tuned for rate in RATES)
    seeds = {
        name: len(_seeds(name)) - sum(run.seed in _seeds(name) for run in compared_runs(results, name))
        for name in dict.fromkeys((BASELINE, *members))
    }
    return tuning + sum(seeds.values())


def has_passed(results: TaskResults) -> bool | None:
    """Return whether gpt has learned the task with every seed; None if its trainings are not all done.

    results: the results of the task so far.
    """
    scores = [run.test for run in compared_runs(results, BASELINE)]
    if len(scores) < len(SEEDS):
        return None
    return all(score is not None and results.task.passes(score, results.levels) for score in scores)


def best_rate(results: TaskResults, kind: str) -> float | None:
    """Return the rate with the best score on validation data; None if a rate is still missing.

    If all trainings of a kind have stopped at a loss that is not finite, it is the lowest rate.

    results: the results of the task so far.
    kind: the member whose trainings tune the rate.
    """
    runs = {run.rate: run for run in results.of_member(kind) if run.seed == TUNING}
    if any(rate not in runs for rate in RATES):
        return None
    scores = {rate: runs[rate].valid for rate in RATES if runs[rate].valid is not None}
    return min(scores, key=lambda rate: results.sign * (scores[rate] or 0.0), default=RATES[0])


def equal_minutes(results: TaskResults, member: str) -> bool:
    """Return whether a member trains for gpt's minutes: its step takes over five times as long.

    results: the results of the task, with the facts of the member.
    member: name of the member.
    """
    return results.facts[member].time_ratio > SLOW


def steps_of(results: TaskResults, member: str) -> int:
    """Return the training steps of a member: the steps of the task, or as many as take gpt's time.

    results: the results of the task, with the facts of the member.
    member: name of the member.
    """
    steps = results.task.steps
    return max(round(steps / results.facts[member].time_ratio), 1) if equal_minutes(results, member) else steps


def _seeds(member: str) -> tuple[int, ...]:
    return SEEDS if member in KINDS else SEEDS[:1]


def _missing(results: TaskResults, members: Sequence[str]) -> Iterator[PlannedRun]:
    done = {run.key for run in results.runs}
    for name in dict.fromkeys((BASELINE, *members)):
        kind = rate_kind(name)
        rate = best_rate(results, kind)
        if rate is None:
            yield from (PlannedRun(kind, rate, TUNING) for rate in RATES if (kind, rate, TUNING) not in done)
            return
        yield from (PlannedRun(name, rate, seed) for seed in _seeds(name) if (name, rate, seed) not in done)
        if name == BASELINE and not has_passed(results):
            return


def compared_runs(results: TaskResults, member: str) -> list[ArenaRun]:
    """Return the runs of a member at its best rate for the seeds 1 to 3, which are compared.

    results: the results of the task.
    member: name of the member.
    """
    rate = best_rate(results, rate_kind(member))
    return [run for run in results.of_member(member) if run.seed in SEEDS and run.rate == rate]
