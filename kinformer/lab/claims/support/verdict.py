"""Measures of a claim, and what they say of it: holds, does not hold, not resolved."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Literal, NamedTuple

from kinformer.lab.plot import Plot

Verdict = Literal["holds", "does not hold", "not resolved"]


class Measure(NamedTuple):
    """A number that a claim is about, measured once for each seed.

    quantity: its name, with its unit.
    values: one for each seed.
    direction: the claim expects "least", "most" or "near" the threshold.
    threshold: fixed before anything was measured.
    no_effect: the value without any effect; the mean must lie two standard errors from it. The threshold if None.
    within: the largest distance from the threshold that counts as "near".
    """

    quantity: str
    values: Sequence[float]
    direction: Literal["least", "most", "near"]
    threshold: float
    no_effect: float | None = None
    within: float = 0.0

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return mean(self.values)

    @property
    def error(self) -> float:
        """The standard error of the mean; 0 for a single value."""
        return stdev(self.values) / math.sqrt(len(self.values)) if len(self.values) > 1 else 0.0

    @property
    def verdict(self) -> Verdict:
        """ "holds" if the effect exceeds two standard errors and meets the threshold.

        "does not hold" if the threshold is missed by more than two standard errors, or no seed shows any effect. Else
        "not resolved".
        """
        if self.direction == "near":
            missed = abs(self.mean - self.threshold) - self.within
            return "holds" if missed + 2 * self.error <= 0 else _judge_missed(missed, self.error)
        sign = 1 if self.direction == "least" else -1
        no_effect = self.threshold if self.no_effect is None else self.no_effect
        effect, missed = sign * (self.mean - no_effect), sign * (self.threshold - self.mean)
        if effect > 2 * self.error and missed <= 0:
            return "holds"
        return "does not hold" if effect <= self.error == 0 else _judge_missed(missed, self.error)

    @property
    def summary(self) -> str:
        """The number with twice its standard error, and the threshold."""
        spread = f" ± {2 * self.error:.3g}" if self.error else ""
        near = f"near {self.threshold:g} (within {self.within:g})"
        bound = near if self.direction == "near" else f"at {self.direction} {self.threshold:g}"
        return f"{self.mean:.5g}{spread}, wanted {bound}"


class Claim(NamedTuple):
    """The result of measuring a claim.

    statement: the claim, in a sentence.
    source: the paper and its section.
    measures: the numbers that decide the verdict.
    facts: more numbers by name, which decide nothing.
    plots: the picture, from left to right.
    """

    statement: str
    source: str
    measures: tuple[Measure, ...]
    facts: Mapping[str, str]
    plots: Sequence[Plot]

    @property
    def verdict(self) -> Verdict:
        """It holds if every measure does, and does not if one does not."""
        verdicts = {measure.verdict for measure in self.measures}
        if "does not hold" in verdicts:
            return "does not hold"
        return "not resolved" if "not resolved" in verdicts else "holds"


def _judge_missed(missed: float, error: float) -> Verdict:
    return "does not hold" if missed > 2 * error else "not resolved"
