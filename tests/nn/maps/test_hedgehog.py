"""Hedgehog: the map by loops over heads, linear attention with grouped heads, its start, and refusals."""

import math

import pytest
import torch

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.maps.hedgehog import Hedgehog
from kinformer.nn.mechanisms.linear import LinearAttention

pytestmark = pytest.mark.usefixtures("float64")

HEADS, GROUPS, WIDTH = 4, 2, 3


def random_map(directions: int | None = 5) -> Hedgehog:
    map = Hedgehog(HEADS, WIDTH, key_heads=GROUPS, directions=directions).double()
    for parameter in map.parameters():
        parameter.data.normal_()
    return map


def features_by_hand(matrix: torch.Tensor, x: torch.Tensor) -> list[float]:
    """exp of each product and of its negative, divided by their sum."""
    products = [sum(float(w) * float(n) for w, n in zip(row, x, strict=True)) for row in matrix]
    powers = [math.exp(u) for u in products] + [math.exp(-u) for u in products]
    return [power / sum(powers) for power in powers]


@torch.no_grad()
def test_features_against_a_loop() -> None:
    map, length = random_map(), 4
    q, k = torch.randn(2, HEADS, length, WIDTH), torch.randn(2, GROUPS, length, WIDTH)
    by_group = q.unflatten(1, (GROUPS, -1)).flatten(2, 3)
    (phi_q, level), (phi_k, constant) = map(by_group, True), map(k, False)
    assert phi_q.shape[-1] == phi_k.shape[-1] == map.features(WIDTH) == 10
    assert constant.count_nonzero() == 0
    phi_q, level = (x.unflatten(2, (HEADS // GROUPS, length)).flatten(1, 2) for x in (phi_q, level))
    for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(length)).tolist():
        for h in range(HEADS):
            expected = torch.tensor(features_by_hand(map.query_matrix[h], q[b, h, t]))
            torch.testing.assert_close(phi_q[b, h, t], expected, rtol=0, atol=1e-11)
            assert level[b, h, t] == map.level[h]
        for g in range(GROUPS):
            expected = torch.tensor(features_by_hand(map.key_matrix[g], k[b, g, t]))
            torch.testing.assert_close(phi_k[b, g, t], expected, rtol=0, atol=1e-11)


def test_attention_with_grouped_heads_against_a_loop_with_gradients_of_every_parameter() -> None:
    """The log-sum-exp contains the level, and both results have the gradients of the loop."""
    map, length = random_map(), 7
    q, k, v = torch.randn(1, HEADS, length, WIDTH), *torch.randn(2, 1, GROUPS, length, WIDTH).unbind(0)
    ctx = Context(torch.arange(length)[None], run=True, full=True)
    read = LinearAttention(map, piece=3)(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y
    by_hand, sums = torch.zeros(1, HEADS, length, WIDTH), torch.zeros(1, HEADS, length)
    for h in range(HEADS):
        g = h * GROUPS // HEADS
        for i in range(length):
            u = map.query_matrix[h] @ q[0, h, i]
            weights = []
            for j in range(i + 1):
                w = map.key_matrix[g] @ k[0, g, j]
                a, b = torch.cat([u, -u]).exp(), torch.cat([w, -w]).exp()
                weights.append((a * b).sum() / a.sum() / b.sum() * map.level[h].exp())
            sums = sums.index_put((torch.tensor(0), torch.tensor(h), torch.tensor(i)), sum(weights))
            mean = sum(x * v[0, g, j] for j, x in enumerate(weights)) / sum(weights)
            by_hand = by_hand.index_put((torch.tensor(0), torch.tensor(h), torch.tensor(i)), mean)
    torch.testing.assert_close(read.y, by_hand, rtol=0, atol=1e-10)
    torch.testing.assert_close(read.lse, sums.log(), rtol=0, atol=1e-10)
    some, other = torch.randn(read.y.shape), torch.randn(sums.shape)
    parameters = list(map.parameters())
    actual = torch.autograd.grad((read.y * some).sum() + (read.lse * other).sum(), parameters)
    expected = torch.autograd.grad((by_hand * some).sum() + (sums.log() * other).sum(), parameters)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
    assert all(gradient.abs().sum() > 0.01 for gradient in expected)


def test_matrices_begin_as_the_identity_and_rotations() -> None:
    map = Hedgehog(2, 4, directions=10, seed=3)
    for matrix in (*map.query_matrix, *map.key_matrix):
        assert torch.equal(matrix[:4], torch.eye(4).to(matrix))
        torch.testing.assert_close(matrix[4:8] @ matrix[4:8].mT, torch.eye(4).to(matrix), rtol=0, atol=1e-6)
        assert not torch.allclose(matrix[4:8], matrix[:4])
    assert torch.equal(Hedgehog(2, 4).key_matrix[0], torch.eye(4).to(map.key_matrix))


def test_orthogonal_and_large_vectors_stay_finite_in_single_precision() -> None:
    q, k, v = 200 * torch.eye(8)[:3].float().view(3, 1, 1, 1, 8).expand(3, 1, 2, 5, 8)
    ctx = Context(torch.arange(5)[None], run=True, full=True)
    read = LinearAttention(Hedgehog(2, 8).float())(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y
    torch.testing.assert_close(read.y, v, rtol=1e-5, atol=0)
    assert read.lse.isfinite().all()


def test_refusals() -> None:
    with pytest.raises(ValueError, match="key_heads=3"):
        Hedgehog(4, 8, key_heads=3)
    with pytest.raises(ValueError, match="^directions=0"):
        Hedgehog(4, 8, directions=0)
    with pytest.raises(ValueError, match=r"2 heads and 2 key heads of width 8, but got .* \[1, 1, 3, 8\]"):
        Hedgehog(2, 8)(torch.randn(1, 1, 3, 8), False)
