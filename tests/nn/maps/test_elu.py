"""ELU features: positive everywhere, and the kernel of their equation."""

import pytest
import torch

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.maps.elu import ELU
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention


def test_the_map_is_elu_plus_one(float64):
    x = torch.randn(1, 2, 5, 4) * 3
    phi, constant = ELU()(x, True)
    phi = phi * constant[..., None].exp()
    for value, actual in zip(x.flatten().tolist(), phi.flatten().tolist(), strict=True):
        expected = value + 1 if value > 0 else 2.718281828459045**value
        assert abs(actual - expected) < 1e-14
    assert constant.shape == (1, 2, 5)


@pytest.mark.parametrize("kind", [LinearAttention, FullLinearAttention])
@pytest.mark.parametrize("far", [-30.0, -37.0, -60.0, -200.0, -1e4])
def test_far_below_zero_it_still_reads_in_float32(kind: type[LinearAttention] | type[FullLinearAttention], far: float):
    """elu(x) + 1 is 0 in float32 from -17 on, and exp(-37) times itself is below what a sum is divided by."""
    pos = torch.arange(3)[None]
    q = (far + torch.tensor([0.0, 0.5, 2.0])[None, None, :, None].expand(1, 1, 3, 4)).requires_grad_()
    v = torch.tensor([1.0, 2.0, 3.0])[None, None, :, None].expand(1, 1, 3, 4)
    ctx = Context.of_sequence(torch.zeros(1, 3, 4))
    read = kind(ELU())(Queries(q, pos[:, None]), Keys(q, v, pos[:, None]), None, ctx).y
    weights = q[0, 0, :, 0].detach().double().sub(far).exp()  # of the keys; a query's own factor cancels
    expected = (weights * v[0, 0, :, 0]).cumsum(0) / weights.cumsum(0)
    if kind is FullLinearAttention:
        expected = expected[-1:].expand(3)
    assert torch.allclose(read.y[0, 0, :, 0].double(), expected, rtol=1e-5)
    read.y.sum().backward()
    assert bool(q.grad.isfinite().all()) and bool(q.grad.any())


def test_gradients_are_finite_far_above_zero():
    x = torch.full((1, 1, 1, 1), 1000.0, requires_grad=True)
    ELU()(x, True)[0].sum().backward()
    assert x.grad is not None and x.grad.item() == 1.0
