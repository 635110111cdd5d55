"""LunaCausal: the equations token by token, its state and its cost, what is refused; TiedKV beside it."""

import math

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.luna_causal import LunaCausal
from kinformer.nn.mechanisms.luna_packs import Packs
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.tied_kv import TiedKV

pytestmark = pytest.mark.usefixtures("float64")

B, G, T, K, V, L, D = 2, 2, 11, 4, 3, 5, 6
PADDED = torch.tensor([[-1, -1, 0, 1, 2, 3, 4, 5, 6, -1, -1], list(range(T))])


def bundles(pos, heads=G, k_dim=K):
    ctx = Context(pos, run=True)
    keys = Keys(
        torch.randn(B, G, T, k_dim), torch.randn(B, G, T, V), ctx.by_head, {"pack": torch.randn(B, G, T, k_dim)}
    )
    return Queries(torch.randn(B, heads, T, k_dim), ctx.by_head), keys, ctx


def weight_of(name, x):
    if name == "elu":
        return x + 1 if x > 0 else math.exp(x)
    return math.log2(1 + 2**x) if name == "log2" else math.log(1 + math.exp(x))


def f(x, y, z):
    """(1/t) x_t sum over j <= t of y_j^T z_j, for each t."""
    return torch.stack([x[t] @ sum(torch.outer(y[j], z[j]) for j in range(t + 1)) / (t + 1) for t in range(len(x))])


def loop(mechanism, q, k, v, side, head):
    ask = mechanism.ask(mechanism.packs())[:, head * K : head * K + K]
    pack = [[weight_of(mechanism.weight, float(x @ a) / math.sqrt(K)) for a in ask] for x in side]
    a_pack = torch.tensor(pack)
    a_unpack = (f(q, k, a_pack) / math.sqrt(K)).softmax(-1)
    return f(a_unpack, a_pack, v)


@pytest.mark.parametrize("heads", [G, 2 * G])
@pytest.mark.parametrize("weight", ["softplus", "elu", "log2"])
@torch.no_grad()
def test_a_token_unpacks_running_averages(weight: str, heads: int) -> None:
    mechanism = LunaCausal(Packs(L, D), G, K, weight=weight, piece=4)
    queries, keys, ctx = bundles(PADDED, heads)
    y = mechanism(queries, keys, None, ctx).y.y
    assert y.shape == (B, heads, T, V) and not y[PADDED[:, None].expand(-1, heads, -1) < 0].any()
    for b in range(B):
        real = PADDED[b] >= 0
        for h in range(heads):
            g = h // (heads // G)
            parts = (queries.q[b, h], keys.k[b, g], keys.v[b, g], keys.extras["pack"][b, g])
            torch.testing.assert_close(y[b, h, real], loop(mechanism, *(x[real] for x in parts), g))


def test_the_state_is_of_one_size_however_long_the_row() -> None:
    layer = Attention(TiedKV(8, 2), LunaCausal(Packs(3, 8), 2, 4)).float()
    state, x = layer.start(1, 4), torch.randn(1, 200, 8, dtype=torch.float32)
    sizes = {name: leaf.numel() for name, leaf in leaves(state)}
    assert sizes == {"k": 2 * 4 * 3, "v": 2 * 3 * 4, "tokens": 1}
    half = Context(torch.arange(100)[None], run=True), Context(torch.arange(100, 200)[None], run=True)
    first = layer(x[:, :100], state, half[0])
    second = layer(x[:, 100:], first.state, half[1])
    assert {name: leaf.numel() for name, leaf in leaves(second.state)} == sizes
    torch.testing.assert_close(torch.cat([first.y, second.y], 1), layer(x).y)
    state_leaves = leaves(layer.bfloat16().start(1, 4))
    assert {leaf.dtype for _, leaf in state_leaves} == {torch.float32}


def test_what_a_backward_keeps_grows_with_the_row_alone() -> None:
    """No numbers for each token and each pair of a pack and a feature: less than half of those."""
    saved_sizes, k_dim, count = {}, 16, 32
    for length in (256, 1024):
        layer = Attention(QKV(16, 1), LunaCausal(Packs(count, 16), 1, k_dim))
        shapes: set[tuple[int, int]] = set()

        def count_once(x: torch.Tensor, shapes: set = shapes) -> torch.Tensor:
            shapes.add((x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()))
            return x

        with saved_tensors_hooks(count_once, lambda x: x):
            y = layer(torch.randn(1, length, 16)).y
        saved_sizes[length] = sum(size for _, size in shapes)
        y.sum().backward()
        assert saved_sizes[length] < length * count * k_dim * 8 * 0.75
    assert saved_sizes[1024] / saved_sizes[256] < 4.1


def test_packs_are_shared_and_sinusoids_do_not_learn() -> None:
    learned, fixed = Packs(L, D), Packs(L, D, "sinusoidal")
    assert [p.shape for p in learned.parameters()] == [(L, D)] and not list(fixed.parameters())
    assert float(fixed()[0, 1]) == 1 and float(fixed()[1, 0]) == pytest.approx(math.sin(1))


def test_wrong_use_is_refused() -> None:
    mechanism = LunaCausal(Packs(L, D), G, K)
    queries, keys, ctx = bundles(PADDED)
    with pytest.raises(ValueError, match="LunaCausal packs one sequence in its order"):
        mechanism(queries, keys._replace(own=False), None, ctx)
    with pytest.raises(ValueError, match="does not support"):
        mechanism(queries, keys, None, ctx.replace(only=Causal()))
    with pytest.raises(ValueError, match="the order of their positions"):
        mechanism(queries, keys, None, ctx.replace(run=False))
    with pytest.raises(ValueError, match="2 key heads of width 4, but got 1 of width 4"):
        Attention(QKV(8, 2, key_heads=1, head_dim=4), mechanism)


def test_tied_keys_are_values() -> None:
    projection, x, pos = TiedKV(6, 2, bias=False), torch.randn(1, 3, 6), torch.arange(3)[None]
    keys = projection.keys(x, pos)
    assert torch.equal(keys.k, keys.v) and sum(p.numel() for p in projection.parameters()) == 2 * 36
    torch.testing.assert_close(keys.k[0, 1], x[0] @ projection.c.weight[3:].T)
    assert projection.matrix("k")[0] is projection.matrix("v")[0] is projection.c.weight
