"""Ranks of members in the arena, and Pareto fronts of scores and costs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from kinformer.lab.arena.arena_results import EntrantFacts, TaskResults
from kinformer.lab.arena.entrant import entrants, find_rate_group
from kinformer.lab.arena.schedule import SEEDS, best_rate, select_compared_runs
from kinformer.lab.compare.interval import Interval, accuracy_interval, interval, is_better
from kinformer.lab.data.task import MOST

Point = tuple[float, float]  # a cost and a score


@dataclass(frozen=True)
class Standing:
    """A member's place in one task of the arena.

    member: name of the member.
    facts: its sizes and costs.
    rate: learning rate of its runs.
    steps: fewest and most training steps of its runs; they differ only for slow members of several machines.
    scores: score on test data for each seed whose run did not stop.
    interval: 95% confidence interval of the mean score; None for a single seed, or if a run stopped.
    rank: 1 + the number of ranked members whose whole interval is better; None for a member that is not ranked.
    stopped: number of runs that stopped because the loss was NaN or infinite.
    """

    member: str
    facts: EntrantFacts
    rate: float
    steps: tuple[int, int]
    scores: tuple[float, ...]
    interval: Interval | None
    rank: int | None
    stopped: int

    @property
    def mean(self) -> float | None:
        """Mean score over the seeds whose runs did not stop; None if every run stopped."""
        return fmean(self.scores) if self.scores else None


def rank_members(results: TaskResults) -> list[Standing]:
    """Return the members of a task, the best mean first, and members with stopped runs last.

    A member is ranked if it has all seeds and read as many tokens as gpt. Its rank is 1 + the number of members whose
    whole interval is better. Two members with overlapping intervals can still have different ranks.

    results: the results of the task.
    """
    known = entrants()
    rows = [row for member in results.facts if member in known and (row := _standing(results, member)) is not None]
    ranked = {row.member: row.interval for row in rows if _is_ranked(row) and row.interval is not None}
    placed = [
        replace(row, rank=_rank(row.member, ranked, results.sign)) if row.member in ranked else row for row in rows
    ]
    return sorted(placed, key=lambda row: (row.stopped > 0, row.mean is None, results.sign * (row.mean or 0.0)))


def describe_uncompared_runs(results: TaskResults) -> Iterator[str]:
    """Yield a sentence for each member with runs that are not compared, which gives the reason.

    After a merge, another rate can be the best of a group. The runs at the earlier rate are then not compared.

    results: the results of the task.
    """
    known = entrants()
    for member in dict.fromkeys(run.member for run in results.runs):
        if member not in known:
            yield f"{member} is not compared, because it takes no part in the arena any more."
            continue
        compared, best = select_compared_runs(results, member), best_rate(results, find_rate_group(member))
        others = [run for run in results.of_member(member) if run.seed in SEEDS and run not in compared]
        if not others:
            continue
        seeds = ", ".join(f"seed {run.seed} at {run.rate:g}" for run in others)
        why = "is not tuned yet" if best is None else f"is now {best:g}"
        yield f"Runs of {member} that are not compared: {seeds}. The rate of the group {why}."


def _standing(results: TaskResults, member: str) -> Standing | None:
    runs = select_compared_runs(results, member)
    if not runs:
        return None
    scores = tuple(run.test for run in runs if run.test is not None)
    steps = [run.steps for run in runs]
    return Standing(
        member,
        results.facts[member],
        runs[-1].rate,
        (min(steps), max(steps)),
        scores,
        _interval(results, scores) if len(scores) == len(runs) else None,
        None,
        len(runs) - len(scores),
    )


def _interval(results: TaskResults, scores: tuple[float, ...]) -> Interval | None:
    # a row may hold several answers, which depend on each other, so rows are counted
    return interval(scores) if results.task.is_text else accuracy_interval(scores, MOST)


def _is_ranked(row: Standing) -> bool:
    return len(row.scores) == len(SEEDS) and not row.facts.is_slow


def _rank(member: str, ranked: Mapping[str, Interval], sign: int) -> int:
    return 1 + sum(is_better(other, ranked[member], sign) for other in ranked.values())


def pareto_front(points: Mapping[str, Point], sign: int) -> list[str]:
    """Return the names of the points that no other point dominates, the cheapest first.

    A point dominates another if its cost is not higher and its score is not worse, and one of the two is better.

    points: cost and score by name.
    sign: 1 if lower scores are better, -1 if higher scores are better.
    """
    front, best = list[str](), float("inf")
    for name, (_, score) in sorted(points.items(), key=lambda item: (item[1][0], sign * item[1][1])):
        if sign * score < best:
            front.append(name)
            best = sign * score
    return front
