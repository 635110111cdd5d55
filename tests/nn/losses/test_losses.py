"""Sums and counts of cross-entropy against its equation; words that are none of the options."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from kinformer.nn.losses.aligned_exits import aligned_loss
from kinformer.nn.losses.compression import AttentionReconstruction
from kinformer.nn.losses.cross_entropy import cross_entropy

TARGETS = torch.tensor([[0, 4, 2, -1], [3, -1, -1, -1]])


def unchecked(function: Callable) -> Callable:
    """A function as it is written, without the checks of its annotations."""
    return unchecked(function.__wrapped__) if hasattr(function, "__wrapped__") else function


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_sum_over_real_targets_and_how_many_there_are(smoothing: float, float64: None) -> None:
    logits, total = torch.randn(2, 4, 5), 0.0
    for b, t in (TARGETS >= 0).nonzero().tolist():
        log_p = logits[b, t].log_softmax(-1)
        total -= float((1 - smoothing) * log_p[TARGETS[b, t]] + smoothing * log_p.mean())
    loss, count = cross_entropy(logits, TARGETS, smoothing)
    assert count == 4 and float(loss) == pytest.approx(total, rel=1e-12)


def test_without_a_target_it_is_zero_and_has_a_gradient() -> None:
    logits = torch.randn(1, 3, 5, requires_grad=True)
    total, count = cross_entropy(logits, torch.full((1, 3), -1))
    (gradient,) = torch.autograd.grad(total, logits)
    assert total == 0 and count == 0 and not gradient.any()


def test_in_bfloat16_it_is_computed_in_float32() -> None:
    logits = (4 * torch.randn(2, 4, 50)).bfloat16()
    total, _ = cross_entropy(logits, TARGETS)
    exact, _ = cross_entropy(logits.double(), TARGETS)
    assert total.dtype == torch.float32 and float(total) == pytest.approx(float(exact), rel=1e-6)


def test_a_word_that_is_none_of_the_options_is_refused() -> None:
    with pytest.raises(ValueError, match="norm='l1' is not known; choose 'l2' or 'segment' or 'mse'"):
        unchecked(AttentionReconstruction.__init__)(nn.Module.__new__(AttentionReconstruction), "l1")
    with pytest.raises(ValueError, match="weights='equal' is not known; choose 'uniform'"):
        unchecked(aligned_loss)([torch.randn(2, 4, 5)], TARGETS, "equal")


@pytest.mark.parametrize(
    ("weights", "w"),
    [
        ("uniform", (1, 1, 1)),
        ("linear", (1, 2, 3)),
        ("sqrt", (1, 2**0.5, 3**0.5)),
        ("inverse", (1, 1 / 2, 1 / 3)),
        ("inverse_sqrt", (1, 2**-0.5, 3**-0.5)),
    ],
)
def test_aligned_equals_its_equation(weights: str, w: tuple[float, ...], float64: None) -> None:
    logits = [torch.randn(2, 4, 5) for _ in range(3)]
    total, count = 0.0, 0
    for b in range(2):
        for t in range(4):
            if TARGETS[b, t] < 0:
                continue
            count += 1
            for exit_logits, weight in zip(logits, w, strict=True):
                total -= weight * float(exit_logits[b, t].log_softmax(-1)[TARGETS[b, t]])
    loss, number = aligned_loss(logits, TARGETS, weights)
    assert number == count and float(loss) == pytest.approx(total / sum(w), rel=1e-12)
