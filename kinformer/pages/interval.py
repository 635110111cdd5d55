"""The interval of a mean over seeds, and which members of a comparison it does not tell apart."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, stdev

SURE = 0.95
Interval = tuple[float, float]


def interval(values: Sequence[float]) -> Interval | None:
    """The 95% interval of the mean that some values were drawn around, Student's; None of a single one."""
    if len(values) < 2:
        return None
    half = quantile(SURE, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def unresolved_pairs(intervals: Mapping[str, Interval | None]) -> list[tuple[str, str]]:
    """The pairs of names whose intervals overlap; what has none, of one seed, is told from nothing."""
    return [
        (name, other)
        for (name, a), (other, b) in combinations(intervals.items(), 2)
        if a is None or b is None or (a[0] <= b[1] and b[0] <= a[1])
    ]


def quantile(share: float, freedom: int) -> float:
    """How far from 0 the given share of Student's t lies on both sides, with so many degrees of freedom, from 1 on."""
    low, high = 0.0, 1.0
    while central_probability(high, freedom) < share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if central_probability(middle, freedom) < share else (low, middle)
    return high


def central_probability(t: float, freedom: int) -> float:
    """The share of Student's t between -t and t. Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for n in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * n / (n + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
