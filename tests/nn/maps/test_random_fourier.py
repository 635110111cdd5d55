"""Random Fourier features: which kernel they estimate, the naive map, and what they refuse."""

import inspect
from math import nan

import pytest
import torch

from kinformer.core.attention_output import merge
from kinformer.core.example import Example
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.attention import Attention
from kinformer.nn.maps.random_fourier import RandomFourier
from kinformer.nn.mechanisms import linear
from kinformer.nn.mechanisms.linear import GatedUpdate, LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")


def call(mechanism, q, k, v):
    ctx = Context(torch.arange(q.shape[2]).expand(len(q), -1), run=True)
    return mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx)


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_products_estimate_the_gaussian_kernel_of_variance_one_over_sigma_squared(sigma):
    """E[phi(x).phi(y)] is exp(-sigma^2 |x - y|^2 / 2), and not exp(-|x - y|^2 / (2 sigma^2))."""
    draws = 200_000
    map = RandomFourier(1, 8, draws)
    map.sigma.data.fill_(sigma)
    x, y = torch.nn.functional.normalize(torch.randn(2, 8), dim=-1)
    (phi_x, _), (phi_y, _) = (map(z[None, None, None], True) for z in (x, y))
    distance = (x - y).square().sum()
    product, error = (phi_x * phi_y).sum(), 4 * draws**-0.5
    assert (product - torch.exp(-(sigma**2) * distance / 2)).abs() < error
    assert (product - torch.exp(-distance / (2 * sigma**2))).abs() > 10 * error


def test_the_temperature_may_differ_by_dimension():
    map = RandomFourier(1, 4, 200_000)
    map.sigma.data.copy_(torch.tensor([[0.0, 1.0, 2.0, 3.0]]))
    x, y = torch.nn.functional.normalize(torch.randn(2, 4), dim=-1)
    (phi_x, _), (phi_y, _) = (map(z[None, None, None], False) for z in (x, y))
    expected = torch.exp(-(map.sigma[0] * (x - y)).square().sum() / 2)
    assert ((phi_x * phi_y).sum() - expected).abs() < 0.01


def test_attention_with_many_directions_is_softmax_of_unit_vectors():
    q, k, v = torch.randn(3, 1, 2, 7, 8).unbind(0)
    map = RandomFourier(2, 8, 100_000)
    map.sigma.data.fill_(1.5)
    output = call(FullLinearAttention(map), q, k, v).y.y
    unit_q, unit_k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    expected = (1.5**2 * unit_q @ unit_k.mT).softmax(-1) @ v
    assert (output - expected).abs().max() < 0.03


def test_the_map_against_a_loop():
    map = RandomFourier(2, 3, 5, eps=0.25, tau=0.5, scale=0.3, seed=4)
    map.sigma.data.copy_(torch.rand(2, 3) + 0.5)
    x = torch.randn(1, 2, 4, 3)
    phi, constant = map(x, False)
    for h in range(2):
        for t in range(4):
            unit = x[0, h, t] / (x[0, h, t].square().sum().sqrt() + 0.25)
            angles = [(map.sigma[h] * w).dot(unit) / 0.5 for w in map.directions[h]]
            expected = torch.stack([0.3 * a.sin() for a in angles] + [0.3 * a.cos() for a in angles])
            assert torch.allclose(phi[0, h, t], expected, atol=1e-14)
    assert constant.count_nonzero() == 0


def test_the_draw_comes_from_the_seed_and_is_saved():
    a, b, c = RandomFourier(2, 4, 8, seed=1), RandomFourier(2, 4, 8, seed=1), RandomFourier(2, 4, 8, seed=2)
    assert torch.equal(a.directions, b.directions) and not torch.equal(a.directions, c.directions)
    c.load_state_dict(a.state_dict())
    assert torch.equal(a.directions, c.directions)


def test_a_sum_below_the_floor_is_raised_to_it():
    total = torch.tensor([-3.0, -0.1, 0.1, 3.0])
    assert RandomFourier(1, 4, floor=0.5).denominator(total).tolist() == [0.5, 0.5, 0.5, 3.0]
    assert RandomFourier(1, 4, floor=0.5, clamp="magnitude").denominator(total).tolist() == [3.0, 0.5, 0.5, 3.0]


def test_a_zero_vector_has_finite_gradients():
    x = torch.zeros(1, 1, 2, 4, requires_grad=True)
    RandomFourier(1, 4)(x, True)[0].sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_a_read_has_no_lse_and_so_does_not_merge():
    declared = [
        entry for entry in linear.EXAMPLES if isinstance(entry, Example) and isinstance(entry.make().map, RandomFourier)
    ]
    assert declared and all("merge" in example.breaks for example in declared)
    q, k, v = torch.randn(3, 1, 1, 3, 4).unbind(0)
    for mechanism in (LinearAttention, FullLinearAttention):
        read = call(mechanism(RandomFourier(1, 4)), q, k, v).y
        assert read.lse is None
        with pytest.raises(ValueError, match="argument 0 has no lse"):
            merge(read, read)


def test_the_floor_is_of_the_sum_itself_in_every_form():
    """A gate shrinks sums; what is compared with the floor is the sum, not the sum over its largest weight."""
    map = RandomFourier(1, 4, floor=0.5)
    q, k, v = torch.randn(3, 1, 1, 6, 4).unbind(0)
    phi_q, phi_k = map(q, True)[0], map(k, False)[0]
    gate = torch.full((1, 1, 6, 1), 6.0)  # adds 1/400 of each token
    add, keep = torch.sigmoid(-gate[0, 0, :, 0]), torch.sigmoid(gate[0, 0, 0, 0])
    ctx = Context(torch.arange(6)[None], run=True)
    queries, keys = Queries(q, ctx.by_head), Keys(k, v, ctx.by_head, {"gate": gate})
    output = LinearAttention(map, GatedUpdate())(queries, keys, None, ctx).y.y
    for i in range(6):
        weight = torch.stack([add[j] * keep ** (i - j) * (phi_q[0, 0, i] @ phi_k[0, 0, j]) for j in range(i + 1)])
        expected = (weight[:, None] * v[0, 0, : i + 1]).sum(0) / weight.sum().clamp_min(0.5)
        torch.testing.assert_close(output[0, 0, i], expected, rtol=0, atol=1e-13)


def test_other_heads_than_it_was_made_for_are_refused():
    layer = Attention(QKV(16, 4), LinearAttention(RandomFourier(2, 4)))
    with pytest.raises(ValueError, match="heads=4, k_dim=4"):
        layer(torch.randn(1, 3, 16))
    with pytest.raises(ValueError, match="must be positive and finite"):
        RandomFourier(1, 4, floor=0.0)
    for wrong in ({"floor": nan}, {"scale": 0.0}, {"tau": 0.0}, {"eps": -0.1}):
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))}="):
            RandomFourier(1, 4, **wrong)


def test_an_unknown_word_is_refused():
    """A2, as outside of the tests, where nothing checks annotations."""
    with pytest.raises(ValueError, match="clamp='abs' is not known; choose 'value' or 'magnitude'"):
        inspect.unwrap(RandomFourier.__init__)(RandomFourier.__new__(RandomFourier), 1, 4, clamp="abs")


def test_directions_are_drawn_anew_and_a_training_that_goes_on_draws_the_same():
    """The paper's training takes others at every step; here `redraw=1`."""
    map, twin = (RandomFourier(2, 4, 8, redraw=1, seed=3) for _ in range(2))
    directions = [map.directions.clone()]
    for _ in range(3):
        map.after_step(0.5, {})
        directions.append(map.directions.clone())
    assert len({float(draw.sum()) for draw in directions}) == 4
    twin.load_state_dict(map.state_dict())
    map.after_step(1.0, {}), twin.after_step(1.0, {})
    assert torch.equal(map.directions, twin.directions) and not torch.equal(map.directions, directions[3])
    never = RandomFourier(2, 4, 8)
    never.after_step(1.0, {})
    assert torch.equal(never.directions, RandomFourier(2, 4, 8).directions)


def test_vectors_at_their_own_length_estimate_the_gaussian_kernel_of_themselves():
    map = RandomFourier(1, 8, 200_000, unit=False)
    x, y = 0.7 * torch.randn(2, 8)
    product = (map(x[None, None, None], True)[0] * map(y[None, None, None], False)[0]).sum()
    assert (product - torch.exp(-(x - y).square().sum() / 2)).abs() < 0.01
    unit_x, unit_y = x / x.norm(), y / y.norm()
    assert (product - torch.exp(-(unit_x - unit_y).square().sum() / 2)).abs() > 0.02
