"""Learn then Test: an exit threshold whose expected loss is provably small, for any distribution."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kinformer.core.checks import check_at_least, check_strictly_between
from kinformer.nn.exits.threshold import Threshold


class ThresholdTest(NamedTuple):
    """The test of one exit threshold by `learn_then_test`.

    threshold: the threshold.
    risk: the mean loss over the calibration texts with this threshold.
    p: the p-value of the hypothesis that the expected loss is above delta.
    """

    threshold: Threshold
    risk: float
    p: float


class LearnThenTestResult(NamedTuple):
    """Result of `learn_then_test`: the chosen exit threshold and all tests.

    threshold: the chosen threshold; None if no threshold is proven to keep the risk, so that no token may exit early.
    tested: the tests of all tested thresholds, in order.
    """

    threshold: Threshold | None
    tested: tuple[ThresholdTest, ...]


def hoeffding(risk: float, n: int, delta: float) -> float:
    """Return Hoeffding's p-value of the hypothesis that the expected loss of a threshold is above delta.

    p = exp(-2 n max(0, delta - risk)^2)

    It bounds the probability that the mean of n losses in [0, 1] is at most `risk` under this hypothesis.

    risk: the mean of the losses.
    n: number of losses.
    delta: the bound on the expected loss.
    """
    return math.exp(-2 * n * max(0.0, delta - risk) ** 2)


def fewest_losses(delta: float, epsilon: float) -> int:
    """Return the least number of losses with which `learn_then_test` can prove a bound.

    There is one loss for each calibration text. With fewer, even a mean loss of 0 proves nothing.

    delta: the bound on the expected loss.
    epsilon: the significance level.
    """
    return math.ceil(math.log(1 / check_epsilon(epsilon)) / (2 * check_delta(delta) ** 2))


def learn_then_test(
    grid: Sequence[Threshold], losses: Callable[[Threshold], Sequence[float]], delta: float, epsilon: float
) -> LearnThenTestResult:
    """Choose the last exit threshold of a grid before the first one that is not proven to be safe.

    P(E[loss at the threshold] <= delta) >= 1 - epsilon

    The probability is over random calibration sets, from any distribution. The grid has a fixed order, the safest
    threshold first. Each threshold is tested at the full significance level epsilon. The first one that fails its test
    ends the sequence (fixed-sequence testing). The losses may go up and down along the grid.

    grid: thresholds, chosen without the calibration losses.
    losses: returns the loss of each calibration text with a threshold, in [0, 1]. It is called only for tested
        thresholds.
    delta: the allowed risk: bound on the expected loss.
    epsilon: the allowed probability that the chosen threshold has an expected loss above delta.

    Errors: ValueError if delta or epsilon is not between 0 and 1, if there are no losses, or if a loss is outside
    [0, 1].
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
    """Return `learn_then_test`'s allowed risk delta; ValueError unless above 0 and below 1.

    value: the risk.
    """
    return check_strictly_between("delta", value, 0, 1)


def check_epsilon(value: float) -> float:
    """Return `learn_then_test`'s allowed probability epsilon; ValueError unless above 0 and below 1.

    value: the probability.
    """
    return check_strictly_between("epsilon", value, 0, 1)


def _test_threshold(threshold: Threshold, losses: Sequence[float], delta: float) -> ThresholdTest:
    """Test the hypothesis that the expected loss with a threshold is above delta."""
    count = check_at_least("calibration texts", len(losses), 1)
    wrong = [loss for loss in losses if not 0 <= loss <= 1]
    if wrong:
        raise ValueError(f"wrong loss for the threshold {threshold}: got {wrong[0]:g}, expected losses from 0 to 1")
    risk = math.fsum(losses) / count
    return ThresholdTest(threshold, risk, hoeffding(risk, count, delta))
