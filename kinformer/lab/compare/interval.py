"""Confidence intervals of means over seeds, and pairs of compared models whose intervals overlap."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, stdev

SURE = 0.95  # confidence level of all intervals
NORMAL = 1.96  # standard errors of a normal distribution for this level
Interval = tuple[float, float]


def interval(values: Sequence[float]) -> Interval | None:
    """Return the 95% confidence interval of a mean by Student's t, or None for fewer than 2 values.

    values: measurements, such as one for each seed.
    """
    if len(values) < 2:
        return None
    half = quantile(SURE, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def accuracy_interval(values: Sequence[float], rows: int) -> Interval | None:
    """Return the 95% confidence interval of a mean accuracy over seeds, or None for fewer than 2 values.

    Choose it in place of `interval` if all seeds are scored on the same few test rows. If all seeds have the same
    accuracy, `interval` has no width, although other test rows would give another accuracy. So the half width is the
    root of the sum of two squares: the half width over the seeds, and 1.96 standard errors over the rows. The standard
    error is sqrt(p (1 - p) / (n + 4)) with p = (k + 2) / (n + 4), for k correct answers on n rows. The interval is
    clipped to [0, 1].

    values: the accuracies, one for each seed.
    rows: number of test rows.

    Source: Agresti and Coull, 1998, doi:10.1080/00031305.1998.10480550.
    """
    if (over_seeds := interval(values)) is None:
        return None
    centre = fmean(values)
    p = (centre * rows + 2) / (rows + 4)
    half = math.hypot(over_seeds[1] - centre, NORMAL * math.sqrt(p * (1 - p) / (rows + 4)))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def is_better(first: Interval, second: Interval, sign: int) -> bool:
    """Return whether a whole interval is better than another one.

    first, second: the intervals.
    sign: 1 if lower values are better, -1 if higher values are better.
    """
    return first[1] < second[0] if sign > 0 else first[0] > second[1]


def unresolved_pairs(intervals: Mapping[str, Interval | None]) -> list[tuple[str, str]]:
    """Return the pairs of names that cannot be ranked because their intervals overlap.

    intervals: the interval of each name. A name with None, from a single seed, cannot be ranked against any other.
    """
    return [
        (name, other)
        for (name, a), (other, b) in combinations(intervals.items(), 2)
        if a is None or b is None or (a[0] <= b[1] and b[0] <= a[1])
    ]


def quantile(share: float, freedom: int) -> float:
    """Return the t such that Student's t distribution has a given probability between -t and t.

    share: the probability, from 0 up to but not including 1.
    freedom: degrees of freedom, at least 1.
    """
    low, high = 0.0, 1.0
    while central_probability(high, freedom) < share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if central_probability(middle, freedom) < share else (low, middle)
    return high


def central_probability(t: float, freedom: int) -> float:
    """Return the probability between -t and t under Student's t distribution.

    t: the limit, at least 0.
    freedom: degrees of freedom, at least 1.

    Source: Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for n in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * n / (n + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
