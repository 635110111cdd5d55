"""Linear attention: naive loops from the equations, chunks, gates, padding, groups of heads, and what it refuses."""

import pytest
import torch

from kinformer.attention import Attention
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.read import merge
from kinformer.core.state import fork, reset
from kinformer.maps.elu import ELU
from kinformer.maps.random_fourier import RandomFourier
from kinformer.mechanisms.linear import FullLinear, Gated, Linear, Sum
from kinformer.patterns.causal import Causal

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K, V = 2, 2, 13, 8, 5


def mechanisms():
    return [
        Linear(ELU()),
        Linear(ELU(), Gated(), piece=4),
        Linear(RandomFourier(H, K, 32)),
        Linear(RandomFourier(H, K, 32), Gated(), piece=5),
    ]


every = pytest.mark.parametrize("mechanism", mechanisms(), ids=["elu", "elu-gated", "fourier", "fourier-gated"])


def inputs(groups=H, t=T):
    q, k, v = torch.randn(B, H, t, K), torch.randn(B, groups, t, K), torch.randn(B, groups, t, V)
    return q, k, v, {"gate": torch.randn(B, H, t, 1) * 2}


def run(pos):
    return Context(pos, run=True)


def numbered(t=T):
    return torch.arange(t).expand(B, t)


def recurrence(mechanism, q, k, v, gate):
    """S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T, z_t likewise, or plain sums; one token and head after the other."""
    y = torch.zeros(B, H, q.shape[2], V)
    (phi_q, _), (phi_k, _) = mechanism.map(q, True), mechanism.map(k, False)
    for b in range(B):
        for h in range(H):
            s, z = torch.zeros(phi_k.shape[-1], V), torch.zeros(phi_k.shape[-1])
            for t in range(q.shape[2]):
                g = gate[b, h, t, 0].sigmoid()
                keep, add = (g, 1 - g) if isinstance(mechanism.update, Gated) else (1.0, 1.0)
                s = keep * s + add * torch.outer(phi_k[b, h, t], v[b, h, t])
                z = keep * z + add * phi_k[b, h, t]
                y[b, h, t] = (phi_q[b, h, t] @ s) / mechanism.map.denominator(phi_q[b, h, t] @ z)
    return y, s, z


@every
def test_the_parallel_form_is_the_recurrence(mechanism):
    q, k, v, sides = inputs()
    state = mechanism.start(B, T, H, K, V)
    out = mechanism(q, k, v, numbered(), state, run(numbered()), sides)
    wanted, s, z = recurrence(mechanism, q, k, v, sides["gate"])
    assert torch.allclose(out.y.y, wanted, atol=1e-12, rtol=1e-12)
    assert torch.allclose(out.state.s[-1, -1], s, atol=1e-12) and torch.allclose(out.state.z[-1, -1], z, atol=1e-12)


@every
@pytest.mark.parametrize("sizes", [[1] * T, [5, 1, 7], [T - 1, 1]], ids=str)
def test_chunks_are_the_whole(mechanism, sizes):
    q, k, v, sides = inputs()
    whole = mechanism(q, k, v, numbered(), None, run(numbered()), sides)
    assert whole.state is None
    state, found = mechanism.start(B, T, H, K, V), []
    for at in torch.arange(T).split(sizes):
        part = {name: side[:, :, at] for name, side in sides.items()}
        pos = numbered()[:, at]
        out = mechanism(q[:, :, at], k[:, :, at], v[:, :, at], pos, state, run(pos), part)
        state = out.state
        found.append(out.y)
    assert torch.allclose(torch.cat([r.y for r in found], 2), whole.y.y, atol=1e-12, rtol=1e-12)
    if whole.y.lse is not None:
        assert torch.allclose(torch.cat([r.lse for r in found], 2), whole.y.lse, atol=1e-12, rtol=1e-12)


@every
def test_padding_on_either_side_changes_nothing(mechanism):
    q, k, v, sides = inputs()
    alone = mechanism(q, k, v, numbered(), mechanism.start(B, T, H, K, V), run(numbered()), sides)
    pos = torch.full((B, T + 4), -1)
    placed = [100 * torch.randn(*x.shape[:2], T + 4, x.shape[-1]) for x in (q, k, v, sides["gate"])]
    for b, left in enumerate((4, 1)):
        pos[b, left : left + T] = torch.arange(T)
        for x, y in zip(placed, (q, k, v, sides["gate"]), strict=True):
            x[b, :, left : left + T] = y[b]
    out = mechanism(*placed[:3], pos, mechanism.start(B, T, H, K, V), run(pos), {"gate": placed[3]})
    for b in range(B):
        assert torch.allclose(out.y.y[b][:, pos[b] >= 0], alone.y.y[b], atol=1e-12)
    assert out.y.y.transpose(1, 2)[pos < 0].count_nonzero() == 0
    assert torch.allclose(out.state.s, alone.state.s, atol=1e-12)
    assert torch.allclose(out.state.z, alone.state.z, atol=1e-12)


def test_a_chunk_of_padding_leaves_the_state_alone():
    mechanism = Linear(ELU(), Gated())
    q, k, v, sides = inputs()
    before = mechanism(q, k, v, numbered(), mechanism.start(B, T, H, K, V), run(numbered()), sides).state
    nothing = torch.full((B, T), -1)
    out = mechanism(q, k, v, nothing, fork(before), run(nothing), sides)
    assert torch.equal(out.state.s, before.s) and torch.equal(out.state.z, before.z)


def test_an_empty_read_is_zero_with_finite_gradients():
    for mechanism in (Linear(ELU()), FullLinear(ELU()), Linear(RandomFourier(H, K))):
        q, k, v, sides = inputs()
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        pos = numbered().clone()
        pos[0] = -1
        out = mechanism(q, k, v, pos, None, run(pos), sides)
        assert out.y.y[0].count_nonzero() == 0
        assert out.y.lse is None or bool((out.y.lse[0] == -torch.inf).all())
        out.y.y.sum().backward()
        assert all(x.grad is not None and x.grad.isfinite().all() and x.grad[0].count_nonzero() == 0 for x in (q, k, v))


def test_saturated_gates_neither_overflow_nor_lose_the_past():
    """With every gate shut to what is new, exponents are of sums of hundreds; float32 must follow float64."""
    q, k, v, _ = inputs()
    for level in (-60.0, 60.0):
        gate = torch.full((B, H, T, 1), level)
        gate[:, :, 0] = 0.0
        reads = [
            Linear(ELU(), Gated())(*(x.to(dtype) for x in (q, k, v)), numbered(), None, run(numbered()), {"gate": gate})
            for dtype in (torch.float32, torch.float64)
        ]
        assert torch.allclose(reads[0].y.y.double(), reads[1].y.y, atol=1e-5)
        # shut gates read the first token alone, open ones the last alone
        assert torch.allclose(reads[1].y.y, v[:, :, :1].expand_as(v) if level > 0 else v, atol=1e-12)


def test_the_state_is_float32_at_least():
    mechanism = Linear(ELU())
    state = mechanism.start(B, T, H, K, V, dtype=torch.bfloat16)
    assert {leaf.dtype for leaf in state} == {torch.float32}
    q, k, v = (x.bfloat16() for x in inputs()[:3])
    out = mechanism(q, k, v, numbered(), state, run(numbered()), {})
    assert {leaf.dtype for leaf in out.state} == {torch.float32} and out.y.y.dtype == torch.bfloat16
    assert {leaf.dtype for leaf in mechanism.start(B, T, H, K, V)} == {torch.float64}


def test_the_state_does_not_grow_and_resets_by_row():
    mechanism = Linear(ELU())
    q, k, v, _ = inputs()
    fresh = mechanism.start(B, 1, H, K, V)
    assert fresh.s.shape == (B, H, K, V) and fresh.z.shape == (B, H, K)
    used = mechanism(q, k, v, numbered(), fresh, run(numbered()), {}).state
    half = mechanism(q, k, v, numbered(), reset(used, torch.tensor([True, False])), run(numbered()), {}).state
    assert torch.allclose(half.s[0], used.s[0]) and torch.allclose(half.s[1], 2 * used.s[1])


def test_key_heads_are_shared_by_groups_of_query_heads():
    q, k, v, _ = inputs(groups=1)
    for mechanism in (Linear(ELU()), FullLinear(ELU())):
        shared = mechanism(q, k, v, numbered(), None, run(numbered()), {}).y
        spread = mechanism(q, *(x.expand(-1, H, -1, -1) for x in (k, v)), numbered(), None, run(numbered()), {}).y
        assert torch.allclose(shared.y, spread.y, atol=1e-13) and torch.allclose(shared.lse, spread.lse, atol=1e-13)
    with pytest.raises(ValueError, match="give as many of both"):
        Linear(ELU(), Gated())(q, k, v, numbered(), None, run(numbered()), {"gate": torch.zeros(B, H, T, 1)})


@pytest.mark.parametrize("rule", [Sum(), Gated()], ids=["sum", "gated"])
def test_the_lse_is_the_log_of_the_sum_of_the_kernel_and_merges(rule):
    q, k, v, sides = inputs()
    mechanism = Linear(ELU(), rule)
    whole = mechanism(q, k, v, numbered(), None, run(numbered()), sides).y
    odd = torch.where(numbered() % 2 == 1, numbered(), -1)
    even = torch.where(numbered() % 2 == 0, numbered(), -1)
    joined = merge(*(mechanism(q, k, v, k_pos, None, run(numbered()), sides).y for k_pos in (odd, even)))
    assert torch.allclose(whole.y, joined.y, atol=1e-12) and torch.allclose(whole.lse, joined.lse, atol=1e-12)
    if isinstance(rule, Sum):
        kernel = torch.where(q > 0, q + 1, q.exp()) @ torch.where(k > 0, k + 1, k.exp()).mT
        assert torch.allclose(whole.lse, (kernel * torch.ones(T, T).tril()).sum(-1).log(), atol=1e-12)


class Scaled(ELU):
    """The same kernel, half of it moved into the constants: what a stabilised exponential map does."""

    def forward(self, x, is_query):
        phi, constant = super().forward(x, is_query)
        level = phi.amax(-1, keepdim=True)
        return phi / level, constant + level[..., 0].log()


def test_what_a_map_leaves_out_is_added_back():
    q, k, v, sides = inputs()
    for mechanism in (Linear, lambda map: Linear(map, Gated(), piece=3), FullLinear):
        plain, scaled = (mechanism(m)(q, k, v, numbered(), None, run(numbered()), sides).y for m in (ELU(), Scaled()))
        assert torch.allclose(plain.y, scaled.y, atol=1e-12) and torch.allclose(plain.lse, scaled.lse, atol=1e-12)


def test_the_full_form_against_a_loop():
    """v'_i = sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j) over all keys, padding left out."""
    q, k, v, _ = inputs()
    k_pos = numbered().clone()
    k_pos[1, 4:] = -1
    found = FullLinear(ELU())(q[:, :, :6], k, v, k_pos, None, Context(numbered(6)), {}).y.y
    for b in range(B):
        for h in range(H):
            for i in range(6):
                phi_q = torch.nn.functional.elu(q[b, h, i]) + 1
                weight = [phi_q.dot(torch.nn.functional.elu(k[b, h, j]) + 1) for j in range(T) if k_pos[b, j] >= 0]
                wanted = sum(w * x for w, x in zip(weight, v[b, h], strict=False)) / sum(weight)
                assert torch.allclose(found[b, h, i], wanted, atol=1e-12)


def test_gates_come_from_the_input():
    """Attention projects one number per head and token; the layer is the recurrence with their sigmoid."""
    layer = Attention(16, H, Linear(ELU(), Gated()), out=False)
    x = torch.randn(B, T, 16)
    q, (k, v) = layer.projection.queries(x, numbered()), layer.projection.keys(x, numbered())
    gate = (x @ layer.side.weight.T + layer.side.bias).transpose(1, 2)[..., None]
    wide = [torch.zeros(B, H, T, V), *(0 for _ in range(2))]
    wide[0], *_ = recurrence(layer.mechanism, q, k, v[..., :V], gate)
    y = layer(x, None, run(numbered())).y.unflatten(-1, (H, K)).transpose(1, 2)
    assert torch.allclose(y[..., :V], wide[0], atol=1e-12)


def test_what_cannot_be_honoured_is_refused():
    q, k, v, _ = inputs()
    pos = numbered()
    with pytest.raises(ValueError, match="run=True"):
        Linear(ELU())(q, k, v, pos, None, Context(pos), {})
    for ctx in (Context(pos, run=True, only=Causal()), Context(pos, run=True, also=Causal())):
        for mechanism in (Linear(ELU()), FullLinear(ELU())):
            with pytest.raises(ValueError, match=r"ctx\.only or ctx\.also"):
                mechanism(q, k, v, pos, None, ctx, {})
    for k_pos in (pos + 1, numbered(T + 1)):
        k, v = torch.randn(B, H, k_pos.shape[1], K), torch.randn(B, H, k_pos.shape[1], V)
        with pytest.raises(ValueError, match="cross-attention"):
            Linear(ELU())(q, k, v, k_pos, None, run(pos), {})
    with pytest.raises(NoState, match=r"use Linear\(map\)"):
        FullLinear(ELU()).start(B, T, H, K, V)
    with pytest.raises(ValueError, match="share 2 key heads"):
        Linear(ELU())(torch.randn(B, 3, T, K), *inputs()[1:3], pos, None, run(pos), {})
