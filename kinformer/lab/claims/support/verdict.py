"""Measures of claims, and their verdicts: holds, does not hold, not resolved."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Literal, NamedTuple

from kinformer.lab.plot import Plot

Verdict = Literal["holds", "does not hold", "not resolved"]
MEANINGS: dict[Verdict, str] = {  # of the verdicts of a claim; `kinformer claim --help` says the same
    "holds": 'every mean over the seeds meets its threshold and differs from "no effect" by more than two standard '
    "errors",
    "does not hold": "a mean misses its threshold by more than two standard errors, or all values of a measure are "
    "equal and show no effect",
    "not resolved": "neither is the case",
}
COVERAGE = (
    "Two standard errors of three seeds cover the true mean in 82% of cases, so a few of the verdicts are chance."
)


class Measure(NamedTuple):
    """A number that decides a claim of a paper, measured once per seed.

    quantity: description of the number, with its unit.
    values: one measured value per seed.
    direction: condition for the mean: "least" if it must be at least the threshold, "most" if at most, "near" if it
        must be close to it.
    threshold: bound for the mean: the paper's number if it gives one, otherwise our own. It was fixed before the
        reported run.
    no_effect: value that shows no effect. The mean must differ from it by more than two standard errors. None takes the
        threshold as this value.
    within: largest distance from the threshold that counts as "near".
    """

    quantity: str
    values: Sequence[float]
    direction: Literal["least", "most", "near"]
    threshold: float
    no_effect: float | None = None
    within: float = 0.0

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return mean(self.values)

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 for a single value."""
        return stdev(self.values) / math.sqrt(len(self.values)) if len(self.values) > 1 else 0.0

    @property
    def verdict(self) -> Verdict:
        """Verdict whether the measured number agrees with the claim.

        The verdict is "holds" if the mean meets the threshold and differs from `no_effect` by more than two standard
        errors. It is "does not hold" if the mean misses the threshold by more than two standard errors, or if all
        values are equal and show no effect. Otherwise it is "not resolved".

        If `direction` is "near", the verdict is "holds" if the distance to the threshold plus two standard errors is at
        most `within`.
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
        """The mean with twice its standard error, and the threshold."""
        spread = f" ± {2 * self.error:.3g}" if self.error else ""
        near = f"{self.threshold:g} ± {self.within:g}"
        bound = near if self.direction == "near" else f"at {self.direction} {self.threshold:g}"
        return f"{self.mean:.5g}{spread}, expected {bound}"


class Claim(NamedTuple):
    """Result of measuring a claim of a paper with models of this library.

    statement: the claim, in one sentence.
    source: the paper and its section.
    measures: measured numbers that decide the verdict.
    facts: further measured numbers by name; they do not affect the verdict.
    plots: plots of the figure in the report, from left to right.
    """

    statement: str
    source: str
    measures: tuple[Measure, ...]
    facts: Mapping[str, str]
    plots: Sequence[Plot]

    @property
    def verdict(self) -> Verdict:
        """Verdict of the claim: the worst verdict of its measures.

        The claim "does not hold" if one measure does not hold. Otherwise it is "not resolved" if one measure is not
        resolved. Otherwise it "holds".
        """
        verdicts = {measure.verdict for measure in self.measures}
        if "does not hold" in verdicts:
            return "does not hold"
        return "not resolved" if "not resolved" in verdicts else "holds"


def _judge_missed(missed: float, error: float) -> Verdict:
    return "does not hold" if missed > 2 * error else "not resolved"
