"""GatedGlobalSoftmax by loops: closed, open and half-open gates, and the gradient of closed ones."""

import math

import pytest
import torch
from torch import nn

import kinformer as kf
from tests.nn.mechanisms.heads import POS, Heads, close, random_heads, real_tokens, run, softmax_sum

pytestmark = pytest.mark.usefixtures("float64")

GLOBAL, RADIUS = 2, 1


def make(*gates: float) -> kf.GatedGlobalSoftmax:
    """The mechanism with these gates."""
    pattern = kf.Band(RADIUS) | kf.Tokens(GLOBAL)
    mechanism = kf.GatedGlobalSoftmax(GLOBAL, len(gates), pattern, kf.Rows(GLOBAL))
    with torch.no_grad():
        mechanism.near.gate.copy_(torch.tensor(gates))
    return mechanism


def check(heads: Heads, global_q: torch.Tensor, y: torch.Tensor, gates: tuple[float, ...], groups: int) -> None:
    """A global row reads all keys; another one is the mixture of its softmax without and with the global keys."""
    for b, h in ((b, h) for b in range(2) for h in range(2)):
        g, tokens = h * groups // 2, real_tokens(b)
        for i in tokens:
            at = int(POS[b, i])

            def attend(columns: list[int], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
                return softmax_sum([q @ k[j] / 2 for j in columns], [v[j] for j in columns])

            if at < GLOBAL:
                wide = heads.extras["global_k"][b, g], heads.extras["global_v"][b, g]
                close(y[b, h, i], attend(tokens, global_q[b, h, i], *wide))
                continue
            own = heads.q[b, h, i], heads.k[b, g], heads.v[b, g]
            local = [j for j in tokens if POS[b, j] >= GLOBAL and abs(at - int(POS[b, j])) <= RADIUS]
            both = [*local, *(j for j in tokens if POS[b, j] < GLOBAL)]
            opening = math.tanh(gates[h])
            close(y[b, h, i], (1 - opening) * attend(local, *own) + opening * attend(both, *own))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("gates", [(0.0, 0.0), (0.7, -0.2), (30.0, 0.0)])
def test_a_gate_mixes_the_softmax_without_and_with_the_global_keys(gates: tuple[float, ...], groups: int) -> None:
    heads, global_q = random_heads(groups=groups, global_k=4, global_v=3), torch.randn(2, 2, POS.shape[1], 4)
    check(heads, global_q, run(make(*gates), heads, global_q=global_q).y.y, gates, groups)


def test_exchanged_gates_are_noticed() -> None:
    heads, global_q = random_heads(global_k=4, global_v=3), torch.randn(2, 2, POS.shape[1], 4)
    with pytest.raises(AssertionError):
        check(heads, global_q, run(make(0.7, -0.2), heads, global_q=global_q).y.y, (-0.2, 0.7), 2)


def test_open_gates_are_global_softmax_and_closed_ones_hide_the_global_tokens() -> None:
    heads, global_q = random_heads(global_k=4, global_v=3), torch.randn(2, 2, POS.shape[1], 4)
    plain = kf.GlobalSoftmax(kf.Band(RADIUS) | kf.Tokens(GLOBAL), kf.Rows(GLOBAL))
    real = (POS >= 0)[:, None].expand(-1, 2, -1)
    opened = run(make(30.0, 30.0), heads, global_q=global_q).y.y
    close(opened[real], run(plain, heads, global_q=global_q).y.y[real])
    before = run(make(0.0, 0.0), heads, global_q=global_q).y.y
    is_global = ((POS >= 0) & (POS < GLOBAL))[:, None, :, None]
    changed = heads._replace(k=torch.where(is_global, 9.0, heads.k), v=torch.where(is_global, 9.0, heads.v))
    local = (POS >= GLOBAL)[:, None].expand(-1, 2, -1)
    assert torch.equal(run(make(0.0, 0.0), changed, global_q=global_q).y.y[local], before[local])


def test_closed_gates_get_gradients() -> None:
    heads, global_q = random_heads(global_k=4, global_v=3), torch.randn(2, 2, POS.shape[1], 4)
    mechanism = make(0.0, 0.0)
    run(mechanism, heads, global_q=global_q).y.y.square().sum().backward()
    assert mechanism.near.gate.grad is not None and bool((mechanism.near.gate.grad != 0).all())


def test_a_layer_of_other_heads_is_refused() -> None:
    layer = kf.Attention(kf.QKV(16, 4), make(0.0, 0.0))
    with pytest.raises(ValueError, match="was made for 2 heads, but got 4. Create it with heads=4"):
        layer(torch.randn(1, 5, 16))
    assert isinstance(layer.side, nn.Linear)
