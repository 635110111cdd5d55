"""Read, merge, weights and mass against dense sums."""

import pytest
import torch

from kinformer.core import read as module
from kinformer.core.read import Read, mass, merge, weights
from kinformer.execute import attend
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.strided import Strided

B, H, G, T, K = 2, 4, 2, 11, 6


@pytest.fixture
def call():
    g = torch.Generator().manual_seed(0)
    q = torch.randn(B, H, T, K, generator=g, dtype=torch.float64, requires_grad=True)
    k = torch.randn(B, G, T, K, generator=g, dtype=torch.float64, requires_grad=True)
    pos = torch.arange(T).expand(B, -1).clone()
    pos[0, :2] = -1
    return q, k, {"q_pos": pos[:, None], "k_pos": pos[:, None], "pattern": Causal() & ~Band(0)}


def dense(q, k, q_pos, k_pos, pattern):
    """The attention matrix, pair by pair."""
    a = torch.zeros(B, H, T, T, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for i in range(T):
                at, to = int(q_pos[b, 0, i]), k_pos[b, 0].tolist()
                keys = [j for j in range(T) if at >= 0 and to[j] >= 0 and bool(pattern(b, h, at, to[j]))]
                if keys:
                    logits = torch.stack([(q[b, h, i] * k[b, h // (H // G), j]).sum() / K**0.5 for j in keys])
                    a[b, h, i, keys] = logits.softmax(0).detach()
    return a


def test_reference_and_weights_are_the_naive_matrix(call):
    q, k, where = call
    v = torch.randn(B, G, T, 3, dtype=torch.float64)
    found = attend(q, k, v, **where)
    a = dense(q, k, **where)
    torch.testing.assert_close(found.y, a @ v.repeat_interleave(2, 1))
    at = torch.arange(T).expand(B, -1)
    torch.testing.assert_close(weights(q, k, found.lse, at=at, **where), a)
    torch.testing.assert_close(weights(q, k, found.lse, at=at[:, [7, 3]], **where), a[:, :, [7, 3]])


def test_mass_is_the_column_sum_in_blocks_with_gradients(call, monkeypatch):
    q, k, where = call
    lse = attend(q, k, k, **where).lse
    whole = mass(q, k, lse, **where)
    torch.testing.assert_close(whole, dense(q, k, **where).sum(2))
    (dq,) = torch.autograd.grad((whole**2).sum(), q, retain_graph=True)
    monkeypatch.setattr(module, "BLOCK", 4)
    blocks = mass(q, k, lse, **where)
    torch.testing.assert_close(blocks, whole)
    torch.testing.assert_close(torch.autograd.grad((blocks**2).sum(), q, retain_graph=True)[0], dq)
    assert dq.isfinite().all() and dq.abs().max() > 0


def test_merge_of_disjoint_patterns_is_the_read_of_their_union(call):
    q, k, where = call
    left, right = Band(2) & Causal(), Causal() & Strided(3) & ~Band(2)
    pieces = [attend(q, k, k, **(where | {"pattern": p})) for p in (left, right)]
    whole = attend(q, k, k, **(where | {"pattern": left | right}))
    for pair in (pieces, pieces[::-1]):
        joined = merge(*pair)
        torch.testing.assert_close(joined.y, whole.y)
        torch.testing.assert_close(joined.lse, whole.lse)


def test_merge_is_associative_and_takes_one_and_nothing():
    reads = [Read(torch.randn(1, 1, 3, 2), torch.randn(1, 1, 3) * 50) for _ in range(3)]
    torch.testing.assert_close(merge(merge(*reads[:2]), reads[2]).y, merge(reads[0], merge(*reads[1:])).y)
    torch.testing.assert_close(merge(reads[0]).y, reads[0].y)
    with pytest.raises(ValueError, match="at least one"):
        merge()
    with pytest.raises(ValueError, match="read 1 has no lse"):
        merge(reads[0], reads[1]._replace(lse=None))


def test_merge_of_no_keys_is_zero_with_finite_gradients():
    y = torch.randn(2, 1, 1, 3, 2, requires_grad=True)
    lse = torch.full((2, 1, 1, 3), -torch.inf)
    lse[0, 0, 0, 1] = 800.0  # exp would overflow; row 0 has one key set, the others none
    lse.requires_grad_()
    found = merge(Read(y[0], lse[0]), Read(y[1], lse[1]))
    assert found.lse.flatten().tolist() == [-torch.inf, 800.0, -torch.inf]
    torch.testing.assert_close(found.y[0, 0], torch.stack([torch.zeros(2), y[0, 0, 0, 1], torch.zeros(2)]))
    for gradient in torch.autograd.grad(found.y.sum() + found.lse[found.lse > -torch.inf].sum(), (y, lse)):
        assert gradient.isfinite().all()
