"""The order of the training runs of the arena: the next run follows from the results so far."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kinformer.lab.arena.arena_results import ArenaRun, TaskResults
from kinformer.lab.arena.arena_task import RATES
from kinformer.lab.arena.entrant import BASELINE, RATE_GROUPS, find_rate_group

TUNING = 0  # seed of the runs that only tune the rate
SEEDS = (1, 2, 3)  # seeds of the runs that are compared


class PlannedRun(NamedTuple):
    """A training run that is still missing.

    member: name of the member.
    rate: peak learning rate, after the warm-up.
    seed: seed of the weights and batches.
    """

    member: str
    rate: float
    seed: int


def next_run(results: TaskResults, members: Sequence[str]) -> PlannedRun | None:
    """Return the next training run of a task; None if all are done, or if gpt has not passed the task.

    results: the results of the task so far.
    members: names of the members that take part.
    """
    return next(_missing(results, members), None)


def count_missing(results: TaskResults, members: Sequence[str]) -> int:
    """Return the number of training runs that are still missing, if gpt passes the task.

    results: the results of the task so far.
    members: names of the members that take part.
    """
    if has_passed(results) is False:
        return 0
    done = {run.key for run in results.runs}
    tuned = dict.fromkeys((BASELINE, *(find_rate_group(name) for name in members)))
    tuning = sum((group, rate, TUNING) not in done for group in tuned for rate in RATES)
    seeds = {
        name: len(_seeds(name)) - sum(run.seed in _seeds(name) for run in select_compared_runs(results, name))
        for name in dict.fromkeys((BASELINE, *members))
    }
    return tuning + sum(seeds.values())


def has_passed(results: TaskResults) -> bool | None:
    """Return whether gpt has learned the task with every seed; None if its runs are not all done.

    results: the results of the task so far.
    """
    scores = [run.test for run in select_compared_runs(results, BASELINE)]
    if len(scores) < len(SEEDS):
        return None
    return all(score is not None and results.task.passes(score, results.levels) for score in scores)


def best_rate(results: TaskResults, group: str) -> float | None:
    """Return the rate with the best score on validation data; None if a rate is still missing.

    If every run stopped, return the lowest rate.

    results: the results of the task so far.
    group: the member whose runs tune the rate of its group.
    """
    runs = {run.rate: run for run in results.of_member(group) if run.seed == TUNING}
    if any(rate not in runs for rate in RATES):
        return None
    scores = {rate: runs[rate].valid for rate in RATES if runs[rate].valid is not None}
    return min(scores, key=lambda rate: results.sign * (scores[rate] or 0.0), default=RATES[0])


def count_steps(results: TaskResults, member: str) -> int:
    """Return the training steps of a member: the steps of the task, or as many as take gpt's time.

    results: the results of the task, with the facts of the member.
    member: name of the member.
    """
    steps, facts = results.task.steps, results.facts[member]
    return max(round(steps / facts.time_ratio), 1) if facts.is_slow else steps


def _seeds(member: str) -> tuple[int, ...]:
    return SEEDS if member in RATE_GROUPS else SEEDS[:1]


def _missing(results: TaskResults, members: Sequence[str]) -> Iterator[PlannedRun]:
    done = {run.key for run in results.runs}
    for name in dict.fromkeys((BASELINE, *members)):
        group = find_rate_group(name)
        rate = best_rate(results, group)
        if rate is None:
            yield from (PlannedRun(group, rate, TUNING) for rate in RATES if (group, rate, TUNING) not in done)
            return
        yield from (PlannedRun(name, rate, seed) for seed in _seeds(name) if (name, rate, seed) not in done)
        if name == BASELINE and not has_passed(results):
            return


def select_compared_runs(results: TaskResults, member: str) -> list[ArenaRun]:
    """Return the runs of a member at its best rate for the seeds 1 to 3, which are compared.

    results: the results of the task.
    member: name of the member.
    """
    rate = best_rate(results, find_rate_group(member))
    return [run for run in results.of_member(member) if run.seed in SEEDS and run.rate == rate]
