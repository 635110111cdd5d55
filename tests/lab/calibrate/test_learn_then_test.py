"""Learn then Test against a naive loop, by hand, and where losses do not rise along the grid."""

import math
import random
from collections.abc import Sequence

import pytest

from kinformer.lab.calibrate.learn_then_test import fewest_losses, hoeffding, learn_then_test
from kinformer.nn.exits.confidence import Probe, Saturation, SoftmaxResponse
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.decaying_threshold import DecayingThreshold
from kinformer.nn.exits.geometric import Geometric
from kinformer.nn.exits.multinomial import Multinomial


def naive(table: dict[float, Sequence[float]], delta: float, epsilon: float) -> float | None:
    """Algorithm 1 as it is written: down the grid, the last one before a p-value above epsilon."""
    best = None
    for threshold in sorted(table, reverse=True):
        mean = sum(table[threshold]) / len(table[threshold])
        p = math.e ** (-2 * len(table[threshold]) * max(0, delta - mean) ** 2)
        if p > epsilon:
            return best
        best = threshold
    return best


def test_it_is_the_paper_s_loop() -> None:
    rng, chosen = random.Random(0), set()
    for _ in range(300):
        grid = [n / 10 for n in range(10, -1, -1)]
        rate = rng.uniform(0, 0.5)
        table = {t: [float(rng.random() < rate * (1 - t)) for _ in range(200)] for t in grid}
        delta, epsilon = rng.uniform(0.08, 0.3), rng.choice([0.05, 0.1])
        actual = learn_then_test(grid, table.__getitem__, delta, epsilon)
        assert actual.threshold == naive(table, delta, epsilon)
        chosen.add(actual.threshold)
    assert len(chosen) > 5


def test_p_values_by_hand() -> None:
    assert hoeffding(0.05, 200, 0.15) == pytest.approx(math.exp(-4))  # 2 * 200 * 0.1^2
    assert hoeffding(0.0, 100, 0.1) == pytest.approx(0.1353352832)
    assert hoeffding(0.2, 100, 0.2) == hoeffding(0.9, 100, 0.2) == 1
    assert fewest_losses(0.1, 0.05) == 150
    assert hoeffding(0.0, 150, 0.1) <= 0.05 < hoeffding(0.0, 149, 0.1)


def test_the_first_that_is_not_rejected_ends_it_however_good_what_comes_after() -> None:
    means, tested = {0.9: 0.0, 0.6: 0.01, 0.3: 0.5, 0.1: 0.0}, []

    def losses(threshold: float) -> list[float]:
        tested.append(threshold)
        return [means[threshold]] * 300

    result = learn_then_test(list(means), losses, 0.1, 0.05)
    assert result.threshold == 0.6 and tested == [0.9, 0.6, 0.3]
    assert [test.risk for test in result.tested] == pytest.approx([0.0, 0.01, 0.5])
    assert learn_then_test([0.3, 0.1], losses, 0.1, 0.05).threshold is None, "nothing is proven"
    vectors = [(0.9, 0.8), (0.5, 0.4)]  # a threshold by layer is one as any other
    assert learn_then_test(vectors, lambda vector: [1 - vector[0]] * 500, 0.2, 0.05).threshold == (0.9, 0.8)


@pytest.mark.parametrize(
    ("losses", "delta", "epsilon", "says"),
    [
        ([], 0.1, 0.05, "calibration texts=0"),
        ([0.0, 1.5], 0.1, 0.05, "wrong loss for the threshold 0.5: got 1.5"),
        ([math.nan], 0.1, 0.05, "wrong loss for the threshold 0.5: got nan"),
        ([0.0], 0.0, 0.05, "delta=0.0: give a number above 0 and below 1"),
        ([0.0], 1.0, 0.05, "delta=1.0"),
        ([0.0], math.nan, 0.05, "delta=nan"),
        ([0.0], 0.1, 0.0, "epsilon=0.0"),
        ([0.0], 0.1, 1.0, "epsilon=1.0"),
    ],
)
def test_what_means_nothing_is_refused(losses: list[float], delta: float, epsilon: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        learn_then_test([0.5], lambda _: losses, delta, epsilon)


def test_each_rule_says_its_thresholds_and_takes_them() -> None:
    probable = [1.0, 0.75, 0.5, 0.25, 0.0]
    for rule in (ConfidenceThreshold(SoftmaxResponse(), 0.9), ConfidenceThreshold(Probe(8), 0.9), Geometric(8, 3)):
        assert rule.grid(5) == probable
        rule.leave_at(0.25)
        assert rule.threshold == 0.25
        rule.leave_at((0.25, 0.5))
        assert rule.threshold == (0.25, 0.5)
        with pytest.raises(ValueError, match="threshold=1.5"):
            rule.leave_at(1.5)
    angles = ConfidenceThreshold(Saturation(), 0.9).grid(7)
    assert angles == pytest.approx([math.cos(math.radians(15 * n)) for n in range(7)])
    falling = ConfidenceThreshold(SoftmaxResponse(), DecayingThreshold(0.9, 20, 2.0, "code"))
    falling.leave_at(0.5)
    assert falling.threshold == DecayingThreshold(0.5, 20, 2.0, "code")
    for call in (lambda: Multinomial(8, 3).grid(5), lambda: Multinomial(8, 3).leave_at(0.5)):
        with pytest.raises(ValueError, match="Multinomial has no exit threshold"):
            call()
