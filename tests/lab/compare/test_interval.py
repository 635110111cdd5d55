"""Intervals of means: Student's t by its integral, and how often they hold the mean."""

import math

import pytest
import torch

from kinformer.lab.compare.interval import accuracy_interval, central_probability, interval, quantile, unresolved_pairs


def test_student_s_t_is_the_tables() -> None:
    """The integral of its density, by the rule of the trapezium; and infinitely many degrees are the normal's."""
    for freedom in (1, 2, 3, 7):
        t = torch.linspace(-2.5, 2.5, 100_001, dtype=torch.float64)
        density = (1 + t.square() / freedom).pow(-(freedom + 1) / 2)
        norm = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
        assert central_probability(2.5, freedom) == pytest.approx(float(torch.trapezoid(density, t)) * norm, rel=1e-9)
        assert central_probability(quantile(0.95, freedom), freedom) == pytest.approx(0.95)
    assert central_probability(1.3, 4000) == pytest.approx(math.erf(1.3 / math.sqrt(2)), rel=1e-3)


def test_intervals_hold_their_mean_as_often_as_they_say() -> None:
    picture = torch.randn(400, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    covered = sum(low <= 0 <= high for low, high in filter(None, map(interval, picture))) / len(picture)
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / len(picture))
    assert interval([1.0]) is None


def test_intervals_of_accuracies_have_the_width_of_the_seeds_and_of_the_test_rows() -> None:
    assert accuracy_interval([1.0, 1.0, 1.0], 512) == pytest.approx((1 - 0.0053614, 1.0), abs=1e-6)
    assert accuracy_interval([0.0, 0.0], 512) == pytest.approx((0.0, 0.0053614), abs=1e-6)
    # p = (57.6 + 2) / 100; 1.96 standard errors are 0.096177, and the seeds' half width is 0.248414
    assert accuracy_interval([0.5, 0.6, 0.7], 96) == pytest.approx((0.6 - 0.266382, 0.6 + 0.266382), abs=1e-5)
    assert accuracy_interval([0.9], 512) is None


def test_overlapping_intervals_are_not_resolved() -> None:
    result = unresolved_pairs({"a": (0.0, 1.0), "b": (0.9, 2.0), "c": (2.1, 3.0), "d": None})
    assert result == [("a", "b"), ("a", "d"), ("b", "d"), ("c", "d")]
