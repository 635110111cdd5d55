"""The trigonometric estimate of softmax's kernel: the map by a loop, and that it is right on average."""

import pytest
import torch

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.maps.trigonometric import Trigonometric
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention

pytestmark = pytest.mark.usefixtures("float64")


def test_the_map_against_a_loop():
    map, x = Trigonometric(4, 6), torch.randn(1, 2, 3, 4)
    phi, constant = map(x, False)
    assert phi.shape[-1] == map.features(4) == 12
    for h, t in torch.cartesian_prod(torch.arange(2), torch.arange(3)).tolist():
        scaled = x[0, h, t] / 4**0.25
        angles = [w @ scaled for w in map.directions.double()]
        before = (scaled @ scaled / 2).exp() / 6**0.5
        expected = torch.stack([before * a.sin() for a in angles] + [before * a.cos() for a in angles])
        torch.testing.assert_close(phi[0, h, t] * constant[0, h, t].exp(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_products_are_exp_of_the_product_on_average(orthogonal):
    map = Trigonometric(8, 200_000, orthogonal=orthogonal)
    x, y = 1.5 * torch.nn.functional.normalize(torch.randn(2, 8), dim=-1)
    (phi_x, of_x), (phi_y, of_y) = map(x[None, None, None], True), map(y[None, None, None], False)
    product = (phi_x * phi_y).sum() * (of_x + of_y).exp()
    assert product.item() == pytest.approx(float((x @ y / 8**0.5).exp()), rel=0.02)


@pytest.mark.parametrize("mechanism", [LinearAttention, FullLinearAttention])
def test_attention_with_many_directions_is_softmax(mechanism):
    q, k, v = torch.randn(3, 1, 2, 7, 8).unbind(0)
    q, k = q / 2, k / 2
    ctx = Context(torch.arange(7)[None], run=True)
    read = mechanism(Trigonometric(8, 100_000))(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y
    causal = torch.full((7, 7), -torch.inf).triu(1) * (mechanism is LinearAttention or torch.nan)
    expected = (q @ k.mT / 8**0.5 + causal.nan_to_num(nan=0.0, neginf=-torch.inf)).softmax(-1) @ v
    assert read.lse is None and (read.y - expected).abs().max() < 0.05


def test_a_sum_below_the_floor_is_raised_to_it():
    map = Trigonometric(4, floor=0.5)
    assert map.denominator(torch.tensor([-3.0, 0.1, 3.0])).tolist() == [0.5, 0.5, 3.0]
    with pytest.raises(ValueError, match=r"^floor=0\.0"):
        Trigonometric(4, floor=0.0)


def test_where_sums_are_raised_all_but_the_largest_key_learn_what_was_read():
    """The prefactor of that key is held fast; the gradients of all other keys and of queries are differences."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 1, 6, width, generator=generator) for width in (4, 4, 2))
    k[:, :, 0] *= 3  # the largest from the first token on
    mechanism, ctx = LinearAttention(Trigonometric(4, 16, floor=50.0)), Context(torch.arange(6)[None], run=True)

    def read(q, rest):
        keys = torch.cat([k[:, :, :1], rest], 2)
        return mechanism(Queries(q, ctx.by_head), Keys(keys, v, ctx.by_head), None, ctx).y.y

    rest = k[:, :, 1:]  # a sum of six products of unit vectors is below the floor
    assert torch.autograd.gradcheck(read, (q.requires_grad_(), rest.requires_grad_()))
