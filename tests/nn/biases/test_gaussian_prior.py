"""GaussianPrior against its equation, the signs of w and b, and where they start."""

import math

import pytest
import torch

from kinformer.attend import attend
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.biases.gaussian_prior import GaussianPrior
from kinformer.nn.patterns.band import Band

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("pattern", [Full(), Causal() & Band(3)], ids=repr)
@pytest.mark.parametrize("own", [1, 3])
def test_equals_a_loop_over_the_equation(pattern: Pattern, own: int) -> None:
    bias = GaussianPrior(own, sigma=1.5, own=0.7)
    with torch.no_grad():
        bias.raw_w += torch.randn(own)
        bias.raw_b += torch.randn(own)
    w, shift = bias.w.tolist() * (3 // own), bias.b.tolist() * (3 // own)
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 2)
    q_pos = torch.tensor([[[4, 5, 6, 7, 8]], [[2, 3, 4, 5, -1]]])
    k_pos = torch.tensor([[[8, 7, 6, 5, 4, 3, 2]], [[-1, 0, 1, 2, 3, 4, 5]]])
    actual = attend(q, k, v, q_pos=q_pos, k_pos=k_pos, pattern=pattern, bias=bias).y
    for b, h, t in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(5)).tolist():
        i, total, y = int(q_pos[b, 0, t]), 0.0, torch.zeros(2)
        for s in range(7):
            j = int(k_pos[b, 0, s])
            if min(i, j) < 0 or not pattern(b, h, q_pos[b, 0, t], k_pos[b, 0, s]):
                continue
            weight = math.exp(q[b, h, t] @ k[b, h, s] / 2 - abs(w[h] * (i - j) ** 2 + shift[h]))
            total, y = total + weight, y + weight * v[b, h, s]
        torch.testing.assert_close(actual[b, h, t], y / total if total else y, rtol=0, atol=1e-12)


def test_it_starts_as_told_and_keeps_its_signs() -> None:
    bias = GaussianPrior(sigma=5.0, own=0.1)
    assert bias.w.item() == pytest.approx(1 / 50, rel=1e-12) and bias.b.item() == pytest.approx(-0.1, rel=1e-12)
    optimiser = torch.optim.SGD(bias.parameters(), 1e3)
    for sign in (1, 1, -1):
        optimiser.zero_grad()
        (sign * (bias.w - bias.b)).sum().backward()
        optimiser.step()
        assert (bias.w >= 0).all() and (bias.b <= 0).all()


def test_a_token_loses_b_of_its_own_score_alone() -> None:
    """Where w n^2 is b, a distance n costs nothing: exp(-b) more than the token itself."""
    bias = GaussianPrior(sigma=1.0, own=0.5)  # w = 1/2: the distance 1 costs nothing
    eye = torch.eye(3).view(1, 1, 3, 3)
    weights = attend(*torch.zeros(2, 1, 1, 3, 4), eye, bias=bias).y[0, 0, 0]
    torch.testing.assert_close(weights / weights[0], torch.tensor([1.0, math.exp(0.5), math.exp(0.5 - 1.5)]))


def test_both_numbers_learn_from_the_start() -> None:
    bias = GaussianPrior(2)
    attend(*torch.randn(3, 1, 2, 6, 4), bias=bias).y.square().sum().backward()
    assert all(p.grad is not None and (p.grad != 0).all() for p in bias.parameters())


def test_what_does_not_fit_is_refused() -> None:
    q = torch.zeros(1, 4, 2, 4)
    with pytest.raises(ValueError, match=r"got GaussianPrior\(2\) in a layer of 4 heads"):
        attend(q, q, q, bias=GaussianPrior(2))
    attend(q, q, q, bias=GaussianPrior())
    for wrong in ({"sigma": 0.0}, {"own": -1.0}, {"heads": 0}):
        with pytest.raises(ValueError, match=f"{min(wrong)}="):
            GaussianPrior(**wrong)
