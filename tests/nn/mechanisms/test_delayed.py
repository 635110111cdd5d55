"""Delayed: linear attention of keys that lie back, token by token; entry after padding and in chunks; the delay."""

import pytest
import torch
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.layer import Context
from kinformer.core.mechanism import Mechanism
from tests.nn.mechanisms.heads import close, random_heads, real_tokens, run

pytestmark = pytest.mark.usefixtures("float64")

B, T, BY = 2, 11, 3


def check(mechanism: Mechanism, groups: int, sinks: int = 0) -> None:
    """y_i = sum over sinks <= j <= i - by of phi(q_i).phi(k_j) v_j over the sum of these weights; 0 before any key."""
    heads = random_heads(groups=groups)
    q, k = F.elu(heads.q) + 1, F.elu(heads.k) + 1
    y = run(mechanism, heads).y.y
    for b, h in ((b, h) for b in range(2) for h in range(2)):
        g, tokens = h * groups // 2, real_tokens(b)
        for n, i in enumerate(tokens):
            keys = tokens[sinks : max(n - BY + 1, 0)]
            weights = [q[b, h, i] @ k[b, g, j] for j in keys]
            total = sum(weight * heads.v[b, g, j] for weight, j in zip(weights, keys, strict=True))
            close(y[b, h, i], total / sum(weights) if keys else torch.zeros(3))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_query_reads_the_keys_that_lie_at_least_so_far_back(groups: int) -> None:
    check(kf.Delayed(kf.LinearAttention(kf.ELU(), piece=4), BY), groups)


@pytest.mark.parametrize("sinks", [1, 2, 5, 20])
def test_no_query_reads_the_sinks(sinks: int) -> None:
    check(kf.Delayed(kf.LinearAttention(kf.ELU(), piece=4), BY, sinks=sinks), 1, sinks)


def test_a_sink_more_or_less_is_noticed() -> None:
    for wrong in (1, 3):
        with pytest.raises(AssertionError):
            check(kf.Delayed(kf.LinearAttention(kf.ELU(), piece=4), BY, sinks=wrong), 2, 2)


@pytest.mark.parametrize("by", [BY - 1, BY + 1])
def test_a_delay_of_a_token_more_or_less_is_noticed(by: int) -> None:
    with pytest.raises(AssertionError):
        check(kf.Delayed(kf.LinearAttention(kf.ELU()), by), 2)


@pytest.mark.parametrize("update", [None, kf.GatedUpdate(), kf.DeltaUpdate()], ids=["sum", "gated", "delta"])
@pytest.mark.parametrize("sizes", [[4, 1, 1, 5], [1] * T, [2, 9]], ids=str)
def test_late_keys_are_those_of_linear_attention_moved_back(update, sizes):
    """Keys moved by hand, in a row that is padded before its tokens and in one that is padded behind; and in chunks."""
    by, linear = 3, kf.LinearAttention(kf.ELU(), update, piece=4)
    layer = kf.Attention(kf.QKV(16, 4, key_heads=2), kf.Delayed(linear, by))
    pos = torch.stack([(torch.arange(T) - 2).clamp_min(-1), torch.where(torch.arange(T) < T - 3, torch.arange(T), -1)])
    x, delayed = torch.randn(B, T, 16), []
    linear.register_forward_pre_hook(lambda _, arguments: delayed.append(arguments))
    whole = layer(x, None, Context(pos, run=True)).y
    _, late, *_ = delayed.pop()
    plain, of_row = kf.Attention(kf.QKV(16, 4, key_heads=2), kf.LinearAttention(kf.ELU(), update)), []
    plain.load_state_dict({n.replace("mechanism.linear.", "mechanism."): p for n, p in layer.state_dict().items()})
    plain.mechanism.register_forward_pre_hook(lambda _, arguments: of_row.append(arguments[1]))
    plain(x, None, Context(pos, run=True))
    for b, t in torch.cartesian_prod(torch.arange(B), torch.arange(T)).tolist():
        enters = pos[b, t] >= by
        assert late.pos[b, 0, t] == (pos[b, t] - by if enters else -1)
        if enters:
            assert torch.equal(late.k[b, :, t], of_row[0].k[b, :, t - by])
            assert torch.equal(late.v[b, :, t], of_row[0].v[b, :, t - by])
            for name, side in late.extras.items():
                assert torch.equal(side[b, :, t], of_row[0].extras[name][b, :, t - by])
    state, pieces = layer.start(B, T), []
    for at in torch.arange(T).split(sizes):
        out = layer(x[:, at], state, Context(pos[:, at], run=True))
        state = out.state
        pieces.append(out.y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-12)
