"""ELU features: positive everywhere, and the kernel of their equation."""

import torch

from kinformer.maps.elu import ELU


def test_the_map_is_elu_plus_one(float64):
    x = torch.randn(1, 2, 5, 4) * 3
    phi, constant = ELU()(x, True)
    for value, found in zip(x.flatten().tolist(), phi.flatten().tolist(), strict=True):
        wanted = value + 1 if value > 0 else 2.718281828459045**value
        assert abs(found - wanted) < 1e-14
    assert constant.shape == (1, 2, 5) and constant.count_nonzero() == 0


def test_far_below_zero_features_stay_positive_in_float32():
    phi, _ = ELU()(torch.full((1, 1, 1, 1), -30.0), True)
    assert 0 < phi.item() < 1e-12


def test_gradients_are_finite_far_above_zero():
    x = torch.full((1, 1, 1, 1), 1000.0, requires_grad=True)
    ELU()(x, True)[0].sum().backward()
    assert x.grad is not None and x.grad.item() == 1.0
