"""Measures of a claim, and what they say of it: holds, does not hold, not resolved."""

import math
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

Verdict = Literal["holds", "does not hold", "not resolved"]
Draw = Callable[[Any], None]  # draws into Matplotlib's axes


class Measure(NamedTuple):
    """A number that a claim is about, measured once for each seed.

    what: what it is, with its unit.
    values: one for each seed.
    wanted: the claim wants it at "least", at "most" or "near" the threshold.
    threshold: fixed before anything was measured.
    nothing: what it would be if there were no effect; it must lie two standard errors from it. The threshold unless
        given.
    within: how far from the threshold is "near".
    """

    what: str
    values: Sequence[float]
    wanted: Literal["least", "most", "near"]
    threshold: float
    nothing: float | None = None
    within: float = 0.0

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return mean(self.values)

    @property
    def error(self) -> float:
        """The standard error of the mean; 0 of what no chance is in."""
        return stdev(self.values) / math.sqrt(len(self.values)) if len(self.values) > 1 else 0.0

    @property
    def verdict(self) -> Verdict:
        """ "holds" if the effect exceeds two standard errors and meets the threshold.

        "does not hold" if the threshold is missed by more than two standard errors, or no seed shows any effect. Else
        "not resolved".
        """
        if self.wanted == "near":
            missed = abs(self.mean - self.threshold) - self.within
            return "holds" if missed + 2 * self.error <= 0 else _missed(missed, self.error)
        sign = 1 if self.wanted == "least" else -1
        nothing = self.threshold if self.nothing is None else self.nothing
        effect, missed = sign * (self.mean - nothing), sign * (self.threshold - self.mean)
        if effect > 2 * self.error and missed <= 0:
            return "holds"
        return "does not hold" if effect <= self.error == 0 else _missed(missed, self.error)

    @property
    def said(self) -> str:
        """The number with twice its standard error, and what was wanted."""
        more = f" ± {2 * self.error:.3g}" if self.error else ""
        how = f"near {self.threshold:g} (within {self.within:g})" if self.wanted == "near" else ""
        return f"{self.mean:.5g}{more}, wanted {how or f'at {self.wanted} {self.threshold:g}'}"


class Claim(NamedTuple):
    """What was found of a claim.

    says: the claim, in a sentence.
    source: where it is made.
    measures: what decides on it.
    told: more numbers, which decide on nothing, by what they are.
    drawn: pictures, by title.
    """

    says: str
    source: str
    measures: tuple[Measure, ...]
    told: dict[str, str]
    drawn: dict[str, Draw]

    @property
    def verdict(self) -> Verdict:
        """It holds if every measure does, and does not if one does not."""
        found = {one.verdict for one in self.measures}
        if "does not hold" in found:
            return "does not hold"
        return "not resolved" if "not resolved" in found else "holds"


def _missed(missed: float, error: float) -> Verdict:
    return "does not hold" if missed > 2 * error else "not resolved"


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent p of y = c x^p, fitted by least squares in logarithms."""
    log_x, log_y = [math.log(one) for one in x], [math.log(one) for one in y]
    middle, height = mean(log_x), mean(log_y)
    across = sum((one - middle) ** 2 for one in log_x)
    return sum((a - middle) * (b - height) for a, b in zip(log_x, log_y, strict=True)) / across
