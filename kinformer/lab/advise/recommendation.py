"""Recommendation of up to three members (named models) by scores of the arena and costs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kinformer.lab.advise.arena_scores import BITS, ArenaScores
from kinformer.lab.advise.fit import Fit
from kinformer.lab.byte_units import size

MOST = 3  # recommended members
TOLERANCE = 0.10  # a member is recommended for its costs if its bits per byte exceed the baseline's by at most this

AMONG = "among members that no other dominates"
COSTS: tuple[tuple[str, Callable[[float], str]], ...] = (  # in the order of `Fit.costs`
    ("the fewest training operations", lambda flops: f"{flops / 1e9:,.3g} GFLOP per row"),
    ("the smallest decoding state", size),
    ("the least training memory", size),
)


@dataclass(frozen=True)
class Recommendation:
    """A recommended member (named model) with the reason.

    fit: the member with its costs.
    reason: the reason in words, with numbers and intervals.
    """

    fit: Fit
    reason: str


def dominates(fit: Fit, other: Fit, tasks: Sequence[ArenaScores]) -> bool:
    """Return whether a member is a better choice than another one in every known respect.

    A dominates B under three conditions. A needs at most as many operations, bytes of state and bytes of memory. No
    score of A is worse. At least one of these is better. Two scores differ if their 95% intervals do not overlap. A
    member without a ranked score dominates no other and is not dominated, because its quality is not known.

    fit, other: the members.
    tasks: the tasks of the arena.
    """
    common = [task for task in tasks if other.name in task.ranked]
    if not common or any(fit.name not in task.ranked for task in common):
        return False
    if any(cost > limit for cost, limit in zip(fit.costs, other.costs, strict=True)):
        return False
    if any(task.is_better(other.name, fit.name) for task in common):
        return False
    return fit.costs != other.costs or any(task.is_better(fit.name, other.name) for task in common)


def recommend(fits: Sequence[Fit], baseline: str, tasks: Sequence[ArenaScores]) -> list[Recommendation]:
    """Return up to three members that no other member dominates, the first one to be tried first.

    With scores of a text, the first member has the best mean among members that no other dominates. A member with a
    better mean may be dominated by a cheaper one whose interval overlaps. The members with the lowest costs follow, if
    their bits per byte exceed the baseline's by at most 10%. Members without a ranked score are not recommended then.
    Without any such score, the baseline comes first, and the members with the lowest costs follow.

    fits: the members that fit in memory.
    baseline: name of the member with which the others are compared.
    tasks: the tasks of the arena; empty if no quality is known.
    """
    front = [fit for fit in fits if not any(dominates(other, fit, tasks) for other in fits)]
    reference = next((fit for fit in fits if fit.name == baseline), None)
    text, measured, near = groups(front, baseline, tasks)
    lead, costs = dict[str, str](), dict[str, list[str]]()  # parts of the reasons, by the name of the member
    if text is not None and measured:
        lead[measured[0].name] = f"It has the best mean {BITS} {AMONG}{_overlapping(measured[0], fits, text)}."
        group, whom = near, f"among members with at most {TOLERANCE:.0%} more {BITS} than {baseline}"
    else:
        lead |= {fit.name: "It is the baseline of comparisons." for fit in front if fit.name == baseline}
        group, whom = front, "among the members that fit"
    for fit, words in _cheapest(group, reference):
        if fit.name in {*lead, *costs} or len({*lead, *costs}) < MOST:
            costs.setdefault(fit.name, []).append(words)
    names = [*lead, *(name for name in costs if name not in lead)]
    for fit in near:
        if len(names) < MOST and fit.name not in names:
            names.append(fit.name)
            lead[fit.name] = f"It has the next best mean {BITS} {AMONG}."
    by_name = {fit.name: fit for fit in fits}
    recommendations = []
    for name in names:
        sentences = [lead[name]] if name in lead else []
        sentences += [f"It has {' and '.join(costs[name])} {whom}."] if name in costs else []
        sentences += [*by_name[name].limits, *_scores(name, baseline, tasks)]
        recommendations.append(Recommendation(by_name[name], " ".join(sentences)))
    return recommendations


def groups(
    front: Sequence[Fit], baseline: str, tasks: Sequence[ArenaScores]
) -> tuple[ArenaScores | None, list[Fit], list[Fit]]:
    """Return the text of the arena, the members that are ranked on it, and the nearly as good members.

    Nearly as good members have a mean of at most 10% more bits per byte than the baseline. The best mean comes first.

    front: the members that may be chosen.
    baseline: name of the member with which the others are compared.
    tasks: the tasks of the arena.
    """
    text = next((task for task in tasks if task.metric == BITS), None)
    if text is None:
        return None, [], []
    means = {name: score.mean for name, score in text.ranked.items() if score.mean is not None}
    measured = sorted((fit for fit in front if fit.name in means), key=lambda fit: means[fit.name])
    limit = (1 + TOLERANCE) * means[baseline]
    return text, measured, [fit for fit in measured if means[fit.name] <= limit]


def _cheapest(fits: Sequence[Fit], reference: Fit | None) -> Iterator[tuple[Fit, str]]:
    """Yield the member with the least of each cost, with words for it. Between equal members the other costs decide."""
    for place, (name, write) in enumerate(COSTS):
        by_cost = {fit.name: (fit.costs[place], fit.costs) for fit in fits}
        fit = min(fits, key=lambda fit: by_cost[fit.name], default=None)
        if fit is None or fit.costs[place] == float("inf"):
            continue  # no member fits the group, or no member of the task has a decoding state
        beside = ""
        if reference is not None and reference is not fit:
            beside = f", {reference.name} {write(reference.costs[place])}"
        yield fit, f"{name} ({write(fit.costs[place])}{beside})"


def _overlapping(best: Fit, fits: Sequence[Fit], text: ArenaScores) -> str:
    """Return the members whose 95% intervals overlap with that of the best one, as words."""
    ranked = [fit.name for fit in fits if fit.name in text.ranked and fit is not best]
    names = [name for name in ranked if not text.is_better(best.name, name) and not text.is_better(name, best.name)]
    return f" (its 95% interval overlaps with that of {', '.join(sorted(names))})" if names else ""


def _scores(name: str, baseline: str, tasks: Sequence[ArenaScores]) -> Iterator[str]:
    """Yield sentences about the scores of a member, and whether its intervals overlap with those of the baseline."""
    if not any(name in task.ranked for task in tasks):
        yield "Its quality is not known."
    for task in tasks:
        score, other = task.ranked.get(name), task.ranked[baseline]
        if score is None:
            continue
        text = f"{score.text} {task.metric} on {task.name}"
        if name == baseline:
            if task.metric == BITS:
                yield f"It has {text}."
            continue
        verdict = "their 95% intervals overlap"
        if task.is_better(name, baseline) or task.is_better(baseline, name):
            better = "better" if task.is_better(name, baseline) else "worse"
            verdict = f"{better}, their 95% intervals do not overlap"
        elif task.metric != BITS:
            continue
        yield f"It has {text}, {baseline} {other.text}: {verdict}."
