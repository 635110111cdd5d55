"""Sentences about the limits of an advice: unknown quality, untimed members and extrapolated costs."""

from collections.abc import Iterator, Sequence

from kinformer.lab.advise.arena_scores import BITS, ArenaScores
from kinformer.lab.advise.estimates import ROWS, SHORT, SLOW, table
from kinformer.lab.advise.fit import Fit
from kinformer.lab.advise.recommendation import MOST, TOLERANCE, Recommendation, dominates, groups


def caveats(
    task: str,
    chosen: Sequence[Recommendation],
    fits: Sequence[Fit],
    tasks: Sequence[ArenaScores],
    length: int,
    baseline: str,
) -> Iterator[str]:
    """Yield sentences about the limits of an advice.

    task: the task.
    chosen: the recommended members (named models).
    fits: the members that fit in memory.
    tasks: the tasks of the arena; empty if no quality is known.
    length: tokens of a row.
    baseline: name of the member with which the others are compared.
    """
    if len(chosen) < MOST:
        yield f"Number: {len(chosen)} of {MOST} members, because {_why_fewer(fits, tasks, baseline)}."
    yield from _of_quality(task, fits, tasks)
    slow = ", ".join(fit.name for fit in fits if fit.faster is None and fit.name != baseline)
    timing = "no training steps were timed"
    if any(fit.faster for fit in fits):
        conditions = f"against {baseline} on {table()['timed']['on']}"
        timing = f"steps of one block of width 256 were timed {conditions}" + (f", but not for {slow}" if slow else "")
    yield f"Speed: operations are additions and multiplications; {timing}."
    unsure, measured = [fit.name for fit in fits if not fit.estimate.sure], [f"{at:,}" for at in ROWS]
    if unsure and not any(fit.estimate.sure for fit in fits if fit.name not in SLOW):
        slow_names = ", ".join(fit.name for fit in fits if fit.name in SLOW)
        other = f", and for {slow_names} from rows of {min(SHORT)} and {min(ROWS)}" if slow_names else ""
        yield f"Cost of rows of {length:,} tokens: extrapolated from rows of {' and '.join(measured)} tokens{other}."
    elif unsure:
        yield (
            f"Cost of rows of {length:,} tokens: extrapolated for {', '.join(unsure)}, because these members were "
            f"measured at only one of {' and '.join(measured)} tokens."
        )


def _why_fewer(fits: Sequence[Fit], tasks: Sequence[ArenaScores], baseline: str) -> str:
    if len(fits) < MOST:
        return f"only {len(fits)} can do the task and fit"
    front = [fit for fit in fits if not any(dominates(other, fit, tasks) for other in fits)]
    text, ranked, _ = groups(fits, baseline, tasks)
    _, measured, near = groups(front, baseline, tasks)
    if text is None or not measured:
        return "the same member has the lowest of several costs, and no quality of the others is known"
    return (
        f"{len(ranked)} members that fit have a ranked score on {text.name}, {len(measured)} of them are not "
        f"dominated, and {len(near)} have at most {TOLERANCE:.0%} more bits per byte than {baseline}"
    )


def _of_quality(task: str, fits: Sequence[Fit], tasks: Sequence[ArenaScores]) -> Iterator[str]:
    """Yield sentences about the known quality of the members."""
    if task != "lm":
        yield "Quality: no quality is known, because the arena compares only members that generate text."
        return
    if not tasks:
        yield "Quality: no quality is known, because the table of the arena has no results."
        return
    for arena in tasks:
        if length := arena.budget.get("length"):
            steps, rows = arena.budget["steps"], arena.budget["batch"]
            yield (
                f"Quality: measured on {arena.name} ({arena.data}) after {steps:,} steps of {rows} x {length} tokens "
                "with models of the arena's small sizes; the order may differ for other data, lengths and sizes."
            )
    reasons: dict[str, list[str]] = {}
    judged = [each for each in tasks if each.metric == BITS] or tasks  # `recommend` needs a rank on the text
    for fit in fits:
        scores = [each.members[fit.name] for each in judged if fit.name in each.members]
        if all(score.rank is None for score in scores):
            why = scores[0].not_compared if scores else "not measured"
            reasons.setdefault(why or "", []).append(fit.name)
    for why, names in reasons.items():
        yield f"Quality: recommended only if no member with a rank fits: {', '.join(names)} ({why})."
