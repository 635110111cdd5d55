"""PPO's loss and generalised advantages against loops written from their equations."""

import math

import pytest
import torch

from kinformer.nn.losses.ppo import advantages, clipped_policy

ROWS, STEPS = 3, 17


def numbers(seed: int) -> torch.Tensor:
    return torch.randn(ROWS, STEPS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("discount", "trace"), [(0.9, 0.8), (1.0, 1.0), (0.97, 0.0)])
def test_advantages_are_discounted_sums_that_end_with_the_episode(discount: float, trace: float) -> None:
    rewards, values, following = (numbers(seed) for seed in range(3))
    ends = numbers(3) > 0.8
    assert ends.any() and not ends.all()
    actual = advantages(rewards, values, following, ends, discount, trace)
    for b in range(ROWS):
        for t in range(STEPS):
            expected, factor = 0.0, 1.0
            for k in range(t, STEPS):
                expected += factor * float(rewards[b, k] + discount * following[b, k] - values[b, k])
                factor *= discount * trace
                if ends[b, k]:
                    break
            assert float(actual[b, t]) == pytest.approx(expected, abs=1e-12)


def test_with_a_trace_of_1_an_advantage_is_what_was_earned_less_what_was_expected() -> None:
    rewards, values = numbers(0), numbers(1)
    ends = torch.zeros(ROWS, STEPS, dtype=torch.bool)
    ends[:, -1] = True
    following = torch.cat([values[:, 1:], torch.zeros(ROWS, 1, dtype=torch.float64)], 1)
    actual = advantages(rewards, values, following, ends, 1.0, 1.0)
    torch.testing.assert_close(actual + values, rewards.flip(1).cumsum(1).flip(1))


def test_the_clipped_loss_is_the_paper_s_minimum() -> None:
    log_p, before, better = 0.3 * numbers(0), 0.3 * numbers(1), numbers(2)
    loss = clipped_policy(log_p, before, better, 0.2)
    for b in range(ROWS):
        for t in range(STEPS):
            r, a = math.exp(float(log_p[b, t] - before[b, t])), float(better[b, t])
            clipped = min(max(r, 0.8), 1.2)
            assert float(loss[b, t]) == pytest.approx(-min(r * a, clipped * a), abs=1e-12)


def test_what_has_gone_far_enough_is_pushed_no_further() -> None:
    log_p = torch.tensor([[0.5, -0.5, 0.5, -0.5]], dtype=torch.float64, requires_grad=True)
    better = torch.tensor([[1.0, -1.0, -1.0, 1.0]], dtype=torch.float64)
    clipped_policy(log_p, torch.zeros_like(log_p), better, 0.2).sum().backward()
    assert log_p.grad is not None
    assert (log_p.grad[0, :2] == 0).all() and (log_p.grad[0, 2:] != 0).all()
