"""Ranks of members in the arena, and Pareto fronts of scores and costs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from kinformer.lab.arena.arena_results import EntrantFacts, TaskResults
from kinformer.lab.arena.schedule import SEEDS, compared_runs, equal_minutes
from kinformer.lab.compare.interval import Interval, interval, is_better

Point = tuple[float, float]  # a cost and a score


@dataclass(frozen=True)
class Standing:
    """A member's place in one task of the arena.

    member: name of the member.
    facts: its sizes and costs.
    rate: learning rate of its trainings.
    steps: its training steps.
    scores: score on test data for each seed.
    interval: 95% confidence interval of the mean score; None for a single seed.
    rank: 1 + the number of ranked members whose whole interval is better; None for a member that is not ranked.
    equal_minutes: whether it trained for gpt's minutes in place of gpt's tokens.
    stopped: number of trainings that a loss that is not finite has ended.
    """

    member: str
    facts: EntrantFacts
    rate: float
    steps: int
    scores: tuple[float, ...]
    interval: Interval | None
    rank: int | None
    equal_minutes: bool
    stopped: int

    @property
    def mean(self) -> float:
        """Mean score over the seeds."""
        return fmean(self.scores)


def standings(results: TaskResults) -> list[Standing]:
    """Return the members of a task, the best mean first.

    A member is ranked if it has all seeds and read as many tokens as gpt. Members whose intervals overlap are not told
    apart: a rank counts only the members that are better beyond the seeds. So several members may share a rank.

    results: the results of the task.
    """
    rows = [row for member in results.facts if (row := _standing(results, member)) is not None]
    ranked = {row.member: row.interval for row in rows if _is_ranked(row) and row.interval is not None}
    placed = [
        replace(row, rank=_rank(row.member, ranked, results.sign)) if row.member in ranked else row for row in rows
    ]
    return sorted(placed, key=lambda row: results.sign * row.mean)


def _standing(results: TaskResults, member: str) -> Standing | None:
    runs = compared_runs(results, member)
    scores = tuple(run.test for run in runs if run.test is not None)
    if not scores:
        return None
    last = runs[-1]
    return Standing(
        member,
        results.facts[member],
        last.rate,
        last.steps,
        scores,
        interval(scores),
        None,
        equal_minutes(results, member),
        len(runs) - len(scores),
    )


def _is_ranked(row: Standing) -> bool:
    return len(row.scores) == len(SEEDS) and not row.equal_minutes


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
