"""Merged: near keys exactly and far ones by an estimate, against loops; the size of its state, and refusals."""

import pytest
import torch

from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.maps.elu import ELU
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.random_fourier import RandomFourier
from kinformer.nn.mechanisms.delayed import Delayed
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.mechanisms.merged import Merged
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")
B, H, T, K = 2, 2, 11, 8


def near_far(by, map, **linear):
    return Merged(Softmax(Causal() & Band(by - 1)), Delayed(LinearAttention(map, **linear), by))


def call(mechanism, q, k, v, pos=None, state=None):
    pos = torch.arange(q.shape[2]).expand(len(q), -1) if pos is None else pos
    ctx = Context(pos, run=True, full=bool((pos >= 0).all()))
    return mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), state, ctx)


@pytest.mark.parametrize("by", [1, 3, T, T + 4])
def test_a_window_exactly_and_features_behind_it(by):
    """Every pair by itself: exp(q.k / sqrt(K)) within the window, phi(q).phi(k) beyond it, one sum to divide by."""
    q, k, v = torch.randn(3, B, H, T, K).unbind(0)
    map = FAVOR(K, 16, eps=0.0)
    phi = [x * left.exp()[..., None] for x, left in (map(q, True), map(k, False))]
    expected, total = torch.zeros(B, H, T, K), torch.zeros(B, H, T)
    for b, h, i in torch.cartesian_prod(*map_of(B, H, T)).tolist():
        for j in range(i + 1):
            exact = (q[b, h, i] @ k[b, h, j] / K**0.5).exp()
            weight = exact if i - j < by else phi[0][b, h, i] @ phi[1][b, h, j]
            expected[b, h, i] += weight * v[b, h, j]
            total[b, h, i] += weight
    read = call(near_far(by, map, piece=4), q, k, v).y
    torch.testing.assert_close(read.y, expected / total[..., None], rtol=0, atol=1e-12)
    torch.testing.assert_close(read.lse, total.log(), rtol=0, atol=1e-12)


def map_of(*sizes):
    return [torch.arange(size) for size in sizes]


def test_two_windows_are_one_softmax():
    q, k, v = torch.randn(3, B, H, T, K).unbind(0)
    merged = Merged(Softmax(Causal() & Band(3)), Softmax(Causal() & ~Band(3)))
    whole = call(Softmax(Causal()), q, k, v).y
    for actual, expected in zip(call(merged, q, k, v).y, whole, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_the_state_does_not_grow_with_the_row():
    def size(length):
        state = near_far(4, FAVOR(K, 16)).start(
            StateSpec(B, length, torch.float64, torch.device("cpu")), HeadSizes(H, H, H, K, K)
        )
        return sum(leaf.numel() for leaf in (state[0].k, state[1].k, state[1].body.inside.s))

    assert size(100) == size(10_000)


def test_the_window_lowers_the_error_of_the_estimate_and_the_estimate_that_of_the_window():
    q, k, v = torch.randn(3, 1, H, 200, K).unbind(0)
    k = k + 0.1 * q.roll(-1, 2)
    expected = call(Softmax(Causal()), q, k, v).y.y
    near, far = Softmax(Causal() & Band(31)), LinearAttention(FAVOR(K, 64))
    error = [(call(mechanism, q, k, v).y.y - expected).norm() for mechanism in (near_far(32, FAVOR(K, 64)), near, far)]
    assert error[0] < error[1] and error[0] < error[2]


def test_refusals():
    q = torch.randn(B, H, T, K)
    with pytest.raises(ValueError, match="argument 1 has no lse"):
        call(near_far(3, RandomFourier(H, K)), q, q, q)
    with pytest.raises(NoState):
        Merged(Softmax(Full())).start(StateSpec(B, T, q.dtype, q.device), HeadSizes(H, H, H, K, K))
    with pytest.raises(ValueError, match=r"^Merged got no mechanism\. Pass at least one"):
        Merged()
    with pytest.raises(ValueError, match="^by=0"):
        Delayed(LinearAttention(ELU()), 0)
    with pytest.raises(ValueError, match="^linear is of the type Softmax; give linear attention"):
        Delayed.__init__.__wrapped__(Delayed.__new__(Delayed), Softmax(Causal()), 2)  # annotations are checked in tests
    with pytest.raises(ValueError, match="Use FullLinearAttention"):
        Attention(QKV(16, 2), Delayed(LinearAttention(ELU()), 2), cross=True)
