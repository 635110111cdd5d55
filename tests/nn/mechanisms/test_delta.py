"""Delta: the recurrence by loops, a key that is rewritten, chunks, a state written in place."""

import pytest
import torch

from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.core.state import fork, leaves
from kinformer.nn.attention import Attention
from kinformer.nn.maps.elu import ELU
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.random_fourier import RandomFourier
from kinformer.nn.mechanisms.delta import Delta
from kinformer.nn.mechanisms.linear import LinearAttention
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")
B, H, T, K, V = 2, 2, 9, 8, 5
MAPS = [ELU(), FAVOR(K, 6), RandomFourier(H, K, 4)]


def inputs(t=T):
    return torch.randn(B, H, t, K), torch.randn(B, H, t, K), torch.randn(B, H, t, V), torch.randn(B, H, t, 1)


def call(mechanism, q, k, v, rate, state=None, first=0):
    ctx = Context(torch.arange(first, first + q.shape[2]).expand(B, -1), run=True)
    return mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head, {"rate": rate}), state, ctx)


def recurrence(map, q, k, v, rate):
    """S_t = S_(t-1) + b_t phi(k_t) (v_t - S_(t-1)^T phi(k_t))^T, y_t = S_t^T phi(q_t), one token after the other."""
    phi_q, phi_k = (x[0] / x[0].abs().sum(-1, keepdim=True) for x in (map(q, True), map(k, False)))
    y = torch.zeros(*q.shape[:3], V)
    for b, h in torch.cartesian_prod(torch.arange(B), torch.arange(H)).tolist():
        s = torch.zeros(phi_k.shape[-1], V)
        for t in range(q.shape[2]):
            f = phi_k[b, h, t]
            s = s + rate[b, h, t].sigmoid() * torch.outer(f, v[b, h, t] - s.T @ f)
            y[b, h, t] = s.T @ phi_q[b, h, t]
    return y


@pytest.mark.parametrize("map", MAPS, ids=lambda map: type(map).__name__)
@pytest.mark.parametrize("piece", [1, 4, 128])
def test_pieces_are_the_recurrence(map, piece):
    arguments = inputs()
    out = call(LinearAttention(map, Delta(), piece=piece), *arguments)
    torch.testing.assert_close(out.y.y, recurrence(map, *arguments), rtol=0, atol=1e-12)
    assert out.y.lse is None


def test_a_key_that_comes_again_takes_its_new_value():
    """With one feature and b = 1 the sums hold the last value alone, where plain sums would hold their mean."""
    keys = torch.full((B, H, 3, 1), 2.0)
    v = torch.randn(B, H, 3, V)
    actual = call(LinearAttention(ELU(), Delta()), keys, keys, v, torch.full((B, H, 3, 1), 60.0))
    torch.testing.assert_close(actual.y.y, v, rtol=0, atol=1e-12)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_a_layer_decodes_and_padding_says_nothing(key_heads):
    layer = Attention(QKV(16, 4, key_heads=key_heads), LinearAttention(ELU(), Delta(), piece=3))
    x, pos = torch.randn(B, T, 16), torch.stack([torch.arange(T), (torch.arange(T) - 2).clamp_min(-1)])
    whole, state, done = layer(x, None, Context(pos, run=True)).y, layer.start(B, T), []
    for at in torch.arange(T).split([4, 1, 1, 3]):
        out = layer(x[:, at], state, Context(pos[:, at], run=True))
        state = out.state
        done.append(out.y)
    torch.testing.assert_close(torch.cat(done, 1), whole, rtol=0, atol=1e-12)
    alone = layer(x[1:, 2:], None, Context(torch.arange(T - 2)[None], run=True)).y
    torch.testing.assert_close(whole[1:, 2:], alone, rtol=0, atol=1e-12)


def test_a_step_writes_in_place_only_where_nothing_learns():
    mechanism, (q, k, v, rate) = LinearAttention(ELU(), Delta()), inputs(1)
    state = mechanism.start(StateSpec(B, T, q.dtype, q.device), HeadSizes(H, H, H, K, V))
    place = state.inside.s.data_ptr()
    before = call(mechanism, q, k, v, rate, state).state
    assert before.inside.s.data_ptr() == place
    copy = fork(before)
    call(mechanism, q, k.requires_grad_(), v, rate, before, 1)
    assert all(torch.equal(x, y) for (_, x), (_, y) in zip(leaves(before), leaves(copy), strict=True))


def test_single_precision_follows_for_long_rows_of_large_keys():
    q, k, v, rate = (3 * x for x in inputs(400))
    exact = call(LinearAttention(ELU(), Delta(), piece=64), q, k, v, rate).y.y
    actual = call(LinearAttention(ELU(), Delta(), piece=64), *(x.float() for x in (q, k, v, rate))).y.y
    assert (actual.double() - exact).abs().max() < 1e-4 * exact.abs().max()
