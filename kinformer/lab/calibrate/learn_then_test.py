"""Learn then Test: the lowest threshold that is proven to keep a risk, whatever the data is drawn from."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kinformer.core.checks import check_at_least, check_strictly_between
from kinformer.nn.exits.threshold import Threshold


class ThresholdTest(NamedTuple):
    """A threshold that was tested: the mean loss with it, and the p-value of "its risk is above delta"."""

    threshold: Threshold
    risk: float
    p: float


class LearnThenTestResult(NamedTuple):
    """What was chosen, None where nothing is proven: then the full model it is; and all that was tested, in order."""

    threshold: Threshold | None
    tested: tuple[ThresholdTest, ...]


def hoeffding(risk: float, n: int, delta: float) -> float:
    """How likely a mean of n losses in [0, 1] is to be no more than this where its expectation is above delta.

    p = exp(-2 n max(0, delta - risk)^2), at most.
    """
    return math.exp(-2 * n * max(0.0, delta - risk) ** 2)


def fewest_losses(delta: float, epsilon: float) -> int:
    """How many losses it takes to prove anything: with fewer, not even zeros reject."""
    return math.ceil(math.log(1 / check_epsilon(epsilon)) / (2 * check_delta(delta) ** 2))


def learn_then_test(
    grid: Sequence[Threshold], losses: Callable[[Threshold], Sequence[float]], delta: float, epsilon: float
) -> LearnThenTestResult:
    """The last of the thresholds, tested in order, up to which each is proven to have a risk of at most delta.

    P(E[loss at the threshold] <= delta) >= 1 - epsilon over calibration sets, of any distribution: the grid is in an
    order that was fixed before, the safest first; each is tested at the whole epsilon, and the first that is not
    rejected ends it, whatever comes after (fixed-sequence testing). So losses need not rise along the grid.

    grid: thresholds; no calibration loss may have a part in their choice.
    losses: of each calibration text with a threshold, in [0, 1]; asked for only as far as the tests go.
    delta: the risk that is allowed, epsilon: how often it may be exceeded.

    Errors: ValueError for numbers that are not between 0 and 1, no losses, and losses outside [0, 1].
    Source: Schuster et al., 2022, arXiv:2207.07061, section 4; Angelopoulos et al., 2021, arXiv:2110.01052.
    """
    check_delta(delta), check_epsilon(epsilon)
    tested: list[ThresholdTest] = []
    for threshold in grid:
        tested.append(_test_threshold(threshold, losses(threshold), delta))
        if tested[-1].p > epsilon:
            break
    rejected = [test.threshold for test in tested if test.p <= epsilon]
    return LearnThenTestResult(rejected[-1] if rejected else None, tuple(tested))


def check_delta(value: float) -> float:
    """A risk: between 0 and 1."""
    return check_strictly_between("delta", value, 0, 1)


def check_epsilon(value: float) -> float:
    """A chance: between 0 and 1."""
    return check_strictly_between("epsilon", value, 0, 1)


def _test_threshold(threshold: Threshold, losses: Sequence[float], delta: float) -> ThresholdTest:
    count = check_at_least("calibration texts", len(losses), 1)
    wrong = [loss for loss in losses if not 0 <= loss <= 1]
    if wrong:
        raise ValueError(f"a loss of {wrong[0]:g} came for the threshold {threshold}; give losses from 0 to 1")
    risk = math.fsum(losses) / count
    return ThresholdTest(threshold, risk, hoeffding(risk, count, delta))
