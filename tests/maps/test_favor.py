"""FAVOR+: what kernel the features estimate, how directions are drawn, and which form peeks."""

import pytest
import torch
from torch.nn import functional as F

from kinformer.attention import Attention
from kinformer.core.layer import Context
from kinformer.core.read import merge
from kinformer.laws import peek
from kinformer.laws.broken import Broken
from kinformer.laws.subject import Subject
from kinformer.maps.favor import FAVOR, RandomReLU
from kinformer.mechanisms.linear import FullLinear, Linear
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.full import Full

pytestmark = pytest.mark.usefixtures("float64")
KINDS = [{}, {"hyperbolic": True}, {"orthogonal": False}, {"stabiliser": "sequence"}]


@pytest.mark.parametrize("keywords", KINDS)
def test_products_estimate_softmaxs_kernel_with_every_constant_added_back(keywords):
    map = FAVOR(8, 60_000, eps=0.0, **keywords)
    q, k = F.normalize(torch.randn(2, 8), dim=-1) * 1.5
    (phi_q, q_left), (phi_k, k_left) = (map(x[None, None, None], n == 0) for n, x in enumerate((q, k)))
    estimate = (phi_q * phi_k).sum() * (q_left + k_left).exp()[0, 0, 0]
    wanted = (q.dot(k) / 8**0.5).exp()
    assert abs(estimate / wanted - 1) < 0.03
    assert abs(estimate / q.dot(k).exp() - 1) > 0.2


@pytest.mark.parametrize("hyperbolic", [False, True])
def test_the_map_against_a_loop(hyperbolic):
    map = FAVOR(4, 5, eps=0.01, hyperbolic=hyperbolic, seed=3)
    x = torch.randn(1, 2, 3, 4)
    phi, left = map(x, False)
    for h in range(2):
        for t in range(3):
            z = x[0, h, t] / 4**0.25
            signs = [1, -1] if hyperbolic else [1]
            kernel = torch.stack([(s * w.dot(z) - z.dot(z) / 2).exp() for s in signs for w in map.directions])
            wanted = (kernel + 0.01 * kernel.max()) / len(kernel) ** 0.5
            assert torch.allclose(phi[0, h, t] * left[0, h, t].exp(), wanted, atol=1e-13)


def test_directions_are_orthogonal_in_blocks_and_as_long_as_normal_vectors():
    w = FAVOR(8, 4000 * 8 - 3).directions
    for block in (w[:8], w[8:16], w[-5:]):
        gram = block @ block.T
        assert (gram - gram.diagonal().diag()).abs().max() < 1e-5
    assert abs(w.square().sum(1).mean() - 8) < 0.1 and w.norm(dim=1).std() > 0.5
    assert w.mean(0).abs().max() < 0.03 and (w.T @ w / len(w) - torch.eye(8)).abs().max() < 0.05


def test_orthogonal_directions_estimate_better():
    x, y = F.normalize(torch.randn(2, 8), dim=-1) * 8**0.25

    def error(orthogonal: bool) -> float:
        map = FAVOR(8, 8 * 20_000, eps=0.0, orthogonal=orthogonal)
        products = [(map.directions @ (z / 8**0.25) - z.dot(z) / 8**0.5 / 2).exp() for z in (x, y)]
        estimates = (products[0] * products[1]).view(-1, 8).mean(1)
        return float((estimates - (x.dot(y) / 8**0.5).exp()).square().mean())

    assert error(True) < 0.9 * error(False)


def test_directions_are_drawn_anew_after_so_many_steps_and_only_then():
    map, twin = FAVOR(4, 6, redraw=3, seed=5), FAVOR(4, 6, redraw=3, seed=5)
    first, seen = map.directions.clone(), []
    for _ in range(7):
        map.after_step(0.5, {})
        seen.append(map.directions.clone())
    assert all(torch.equal(seen[n], first) for n in (0, 1))
    assert torch.equal(seen[2], seen[4]) and torch.equal(seen[5], seen[6])
    assert not torch.equal(seen[2], first) and not torch.equal(seen[5], seen[2])
    twin.load_state_dict(map.state_dict())
    for _ in range(2):
        map.after_step(1.0, {}), twin.after_step(1.0, {})
    assert torch.equal(map.directions, twin.directions) and not torch.equal(map.directions, seen[6])
    never = FAVOR(4, 6)
    never.after_step(1.0, {})
    assert torch.equal(never.directions, FAVOR(4, 6).directions)


def test_a_far_field_by_features_merges_with_near_keys_by_softmax():
    """Half of the keys are read exactly and half by features: near softmax over all, nearer than features alone."""
    q, k, v = 0.4 * torch.randn(3, 1, 2, 12, 8)
    pos = torch.arange(12)[None]
    linear = FullLinear(FAVOR(8, 20_000, eps=0.0))

    def read(mechanism, k_pos):
        return mechanism(q, k, v, k_pos, None, Context(pos), {}).y

    exact = read(Softmax(Full()), pos)
    both = merge(read(Softmax(Full()), pos.masked_fill(pos < 6, -1)), read(linear, pos.masked_fill(pos >= 6, -1)))
    assert (both.y - exact.y).abs().max() < 0.01 and (both.lse - exact.lse).abs().max() < 0.02
    assert (both.y - exact.y).norm() < 0.9 * (read(linear, pos).y - exact.y).norm()


def test_what_the_published_stabiliser_does_is_peeking():
    def subject(stabiliser: str) -> Subject:
        map = {"eps": 1e-4, "stabiliser": stabiliser}
        return Subject(stabiliser, lambda: Attention(16, 2, Linear(FAVOR(8, 16, **map))))

    peek.check(subject("token"))
    with pytest.raises(Broken):
        peek.check(subject("sequence"))


def test_large_vectors_do_not_overflow():
    for stabiliser in ("token", "sequence"):
        x = (30 * torch.randn(1, 1, 5, 8)).float().requires_grad_()
        pos = torch.arange(5)[None]
        y = Linear(FAVOR(8, 16, stabiliser=stabiliser).float())(x, x / 10, x, pos, None, Context(pos, run=True), {}).y.y
        y.sum().backward()
        assert y.isfinite().all() and x.grad.isfinite().all()


def test_errors_say_what_to_do():
    x = torch.zeros(1, 1, 1, 8)
    with pytest.raises(ValueError, match="make it with k_dim=8"):
        FAVOR(4)(x, True)
    with pytest.raises(ValueError, match="0 or more"):
        FAVOR(4, eps=-1.0)
    with pytest.raises(ValueError, match="at least 1"):
        RandomReLU(4, redraw=0)
    with pytest.raises(ValueError, match="at least one"):
        FAVOR(4, 0)
    with pytest.raises(ValueError, match="make it positive"):
        RandomReLU(4, eps=0.0)
