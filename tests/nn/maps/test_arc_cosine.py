"""Arc-cosine features: the map by a loop, the kernel that it estimates, and what it refuses."""

import math

import pytest
import torch

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.attention import Attention
from kinformer.nn.maps.arc_cosine import ArcCosine
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("unit", [True, False])
def test_the_map_against_a_loop(unit):
    map, x = ArcCosine(2, 3, 5, eps=0.25, unit=unit, seed=4), torch.randn(1, 2, 4, 3)
    phi, constant = map(x, False)
    assert phi.shape[-1] == map.features(3) == 5 and constant.count_nonzero() == 0
    for h, t in torch.cartesian_prod(torch.arange(2), torch.arange(4)).tolist():
        vector = x[0, h, t] / (x[0, h, t].square().sum().sqrt() if unit else 1.0)
        expected = [math.sqrt(1 / 5) * max(float(w @ vector), 0.0) + 0.25 for w in map.directions[h].double()]
        torch.testing.assert_close(phi[0, h, t], torch.tensor(expected), rtol=0, atol=1e-14)


@pytest.mark.parametrize("degrees", [0, 60, 90, 150, 180])
def test_products_are_the_arc_cosine_kernel_on_average(degrees):
    """Cho and Saul's kernel of degree 1, (sin a + (pi - a) cos a) / pi, whose integral over directions halves it."""
    angle = math.radians(degrees)
    x, y = torch.tensor([3.0, 0.0, 0.0]), 0.5 * torch.tensor([math.cos(angle), math.sin(angle), 0.0])
    map = ArcCosine(1, 3, 200_000, eps=0.0)
    product = (map(x[None, None, None], True)[0] * map(y[None, None, None], False)[0]).sum()
    expected = (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / (2 * math.pi)
    assert product.item() == pytest.approx(expected, abs=0.01)
    longer = ArcCosine(1, 3, 200_000, eps=0.0, unit=False)
    product = (longer(x[None, None, None], True)[0] * longer(y[None, None, None], False)[0]).sum()
    assert product.item() == pytest.approx(1.5 * expected, abs=0.015)


def test_eps_keeps_a_divisor_where_no_direction_is_shared():
    """Opposed vectors share no feature: with the paper's eps of 0 nothing is read."""
    q, v = torch.ones(1, 1, 1, 4), torch.full((1, 1, 1, 4), 3.0)
    ctx = Context(torch.zeros(1, 1, dtype=torch.long), run=True)
    for eps, expected in ((0.0, 0.0), (1e-6, 3.0)):
        read = FullLinearAttention(ArcCosine(1, 4, 8, eps=eps))(
            Queries(q, ctx.by_head), Keys(-q, v, ctx.by_head), None, ctx
        ).y
        torch.testing.assert_close(read.y, torch.full_like(v, expected))


def test_a_vector_of_zeros_has_finite_gradients():
    x = torch.zeros(1, 1, 2, 4, requires_grad=True)
    ArcCosine(1, 4)(x, True)[0].sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_heads_have_directions_of_their_own_and_others_are_refused():
    map = ArcCosine(2, 4, seed=1)
    assert not torch.equal(map.directions[0], map.directions[1])
    with pytest.raises(ValueError, match=r"^ArcCosine was made for 2 key heads of width 4, .* heads=4, k_dim=4$"):
        Attention(QKV(16, 4), FullLinearAttention(map))(torch.randn(1, 3, 16))
    with pytest.raises(ValueError, match=r"^eps=-1"):
        ArcCosine(2, 4, eps=-1.0)
