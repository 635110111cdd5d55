"""Linear attention: naive loops from the equations, chunks, gates, padding, groups of heads, and what it refuses."""

import inspect
import subprocess
import sys

import pytest
import torch

from kinformer.core.attention_output import merge
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.core.patterns.causal import Causal
from kinformer.core.state import UncastState, fork, reset
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.maps.elu import ELU
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.random_fourier import RandomFourier
from kinformer.nn.mechanisms.decayed import Decayed
from kinformer.nn.mechanisms.delta_update import DeltaUpdate
from kinformer.nn.mechanisms.linear import AdditiveUpdate, GatedUpdate, LinearAttention
from kinformer.nn.mechanisms.linear_full import FullLinearAttention
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K, V = 2, 2, 13, 8, 5


def mechanisms():
    return [
        LinearAttention(ELU()),
        LinearAttention(ELU(), GatedUpdate(), piece=4),
        LinearAttention(RandomFourier(H, K, 32)),
        LinearAttention(RandomFourier(H, K, 32), GatedUpdate(), piece=5),
        LinearAttention(ELU(), Decayed(), piece=4),
    ]


every = pytest.mark.parametrize(
    "mechanism", mechanisms(), ids=["elu", "elu-gated", "fourier", "fourier-gated", "elu-decayed"]
)


def inputs(groups=H, t=T):
    q, k, v = torch.randn(B, H, t, K), torch.randn(B, groups, t, K), torch.randn(B, groups, t, V)
    return q, k, v, {"gate": torch.randn(B, groups, t, 1) * 2}


def run(pos):
    return Context(pos, run=True)


def numbered(t=T):
    return torch.arange(t).expand(B, t)


def call(mechanism, q, k, v, k_pos=None, state=None, ctx=None, extras=None, own=True):
    k_pos = numbered(k.shape[2]) if k_pos is None else k_pos
    ctx = run(numbered(q.shape[2])) if ctx is None else ctx
    queries, keys = Queries(q, ctx.by_head), Keys(k, v, k_pos[:, None], extras or {}, own=own)
    return mechanism(queries, keys, state, ctx)


def begun(mechanism, length=T, groups=H, dtype=torch.float64, cross=False):
    spec = StateSpec(B, length, dtype, torch.device("cpu"))
    return mechanism.start(spec, HeadSizes(H, groups, groups, K, V, cross))


def sums(state):
    """S and z, the constants that were kept apart put back."""
    whole = state.inside.s * state.inside.level.exp()[..., None, None]
    return whole[..., :-1], whole[..., -1]


def recurrence(mechanism, q, k, v, gate):
    """S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T, or without 1 - g_t, or plain sums, z_t likewise; token by token."""
    y = torch.zeros(B, H, q.shape[2], V)
    (phi_q, _), (phi_k, _) = mechanism.map(q, True), mechanism.map(k, False)
    for b in range(B):
        for h in range(H):
            s, z = torch.zeros(phi_k.shape[-1], V), torch.zeros(phi_k.shape[-1])
            for t in range(q.shape[2]):
                g = gate[b, h, t, 0].sigmoid()
                keep = g if isinstance(mechanism.update, GatedUpdate | Decayed) else 1.0
                add = 1 - g if isinstance(mechanism.update, GatedUpdate) else 1.0
                s = keep * s + add * torch.outer(phi_k[b, h, t], v[b, h, t])
                z = keep * z + add * phi_k[b, h, t]
                y[b, h, t] = (phi_q[b, h, t] @ s) / mechanism.map.denominator(phi_q[b, h, t] @ z)
    return y, s, z


@every
def test_the_parallel_form_is_the_recurrence(mechanism):
    q, k, v, extras = inputs()
    out = call(mechanism, q, k, v, state=begun(mechanism), extras=extras)
    expected, s, z = recurrence(mechanism, q, k, v, extras["gate"])
    assert torch.allclose(out.y.y, expected, atol=1e-12, rtol=1e-12)
    ours_s, ours_z = sums(out.state)
    assert torch.allclose(ours_s[-1, -1], s, atol=1e-12) and torch.allclose(ours_z[-1, -1], z, atol=1e-12)


@every
@pytest.mark.parametrize("sizes", [[1] * T, [5, 1, 7], [T - 1, 1]], ids=str)
def test_chunks_are_the_whole(mechanism, sizes):
    q, k, v, extras = inputs()
    whole = call(mechanism, q, k, v, extras=extras)
    assert whole.state is None
    state, outputs = begun(mechanism), []
    for at in torch.arange(T).split(sizes):
        part = {name: side[:, :, at] for name, side in extras.items()}
        pos = numbered()[:, at]
        out = call(mechanism, q[:, :, at], k[:, :, at], v[:, :, at], pos, state, run(pos), part)
        state = out.state
        outputs.append(out.y)
    assert torch.allclose(torch.cat([r.y for r in outputs], 2), whole.y.y, atol=1e-12, rtol=1e-12)
    if whole.y.lse is not None:
        assert torch.allclose(torch.cat([r.lse for r in outputs], 2), whole.y.lse, atol=1e-12, rtol=1e-12)


@every
def test_padding_on_either_side_changes_nothing(mechanism):
    q, k, v, extras = inputs()
    alone = call(mechanism, q, k, v, state=begun(mechanism), extras=extras)
    pos = torch.full((B, T + 4), -1)
    placed = [100 * torch.randn(*x.shape[:2], T + 4, x.shape[-1]) for x in (q, k, v, extras["gate"])]
    for b, left in enumerate((4, 1)):
        pos[b, left : left + T] = torch.arange(T)
        for x, y in zip(placed, (q, k, v, extras["gate"]), strict=True):
            x[b, :, left : left + T] = y[b]
    out = call(mechanism, *placed[:3], pos, begun(mechanism), run(pos), {"gate": placed[3]})
    for b in range(B):
        assert torch.allclose(out.y.y[b][:, pos[b] >= 0], alone.y.y[b], atol=1e-12)
    assert out.y.y.transpose(1, 2)[pos < 0].count_nonzero() == 0
    for ours, theirs in zip(sums(out.state), sums(alone.state), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_a_chunk_of_padding_leaves_the_state_alone():
    mechanism = LinearAttention(ELU(), GatedUpdate())
    q, k, v, extras = inputs()
    before = call(mechanism, q, k, v, state=begun(mechanism), extras=extras).state
    for length in (T, 1):
        nothing, gates = torch.full((B, length), -1), {"gate": extras["gate"][:, :, :length]}
        chunk = (x[:, :, :length] for x in (q, k, v))
        out = call(mechanism, *chunk, nothing, fork(before), run(nothing), gates)
        assert all(torch.equal(new, old) for new, old in zip(out.state.inside, before.inside, strict=True))


def test_an_empty_read_is_zero_with_finite_gradients():
    for mechanism in (LinearAttention(ELU()), FullLinearAttention(ELU()), LinearAttention(RandomFourier(H, K))):
        q, k, v, extras = inputs()
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        pos = numbered().clone()
        pos[0] = -1
        out = call(mechanism, q, k, v, pos, None, run(pos), extras)
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
            call(LinearAttention(ELU(), GatedUpdate()), *(x.to(dtype) for x in (q, k, v)), extras={"gate": gate})
            for dtype in (torch.float32, torch.float64)
        ]
        assert torch.allclose(reads[0].y.y.double(), reads[1].y.y, atol=1e-5)
        # shut gates read the first token alone, open ones the last alone
        assert torch.allclose(reads[1].y.y, v[:, :, :1].expand_as(v) if level > 0 else v, atol=1e-12)


@pytest.mark.parametrize("length", [1, T])
def test_a_state_of_single_precision_serves_a_model_of_double(length):
    mechanism, (q, k, v, _) = LinearAttention(ELU()), inputs(t=length)
    out = call(mechanism, q, k, v, state=begun(mechanism, dtype=torch.float32))
    assert {leaf.dtype for leaf in out.state.inside} == {torch.float32} and out.y.y.dtype == torch.float64
    output_again = call(mechanism, q, k, v, state=out.state)
    doubled = call(mechanism, *(torch.cat([x, x], 2) for x in (q, k, v)))
    assert torch.allclose(torch.cat([out.y.y, output_again.y.y], 2), doubled.y.y, atol=1e-5)


def test_the_state_is_float32_at_least():
    mechanism = LinearAttention(ELU())
    for length in (T, 1):
        state = begun(mechanism, dtype=torch.bfloat16)
        assert {leaf.dtype for leaf in state.inside} == {torch.float32}
        q, k, v = (x.bfloat16() for x in inputs(t=length)[:3])
        out = call(mechanism, q, k, v, state=state)
        assert {leaf.dtype for leaf in out.state.inside} == {torch.float32} and out.y.y.dtype == torch.bfloat16
    assert {leaf.dtype for leaf in begun(mechanism).inside} == {torch.float64}


@pytest.mark.parametrize("length", [1, T])
def test_a_state_keeps_its_precision_whatever_comes(length):
    """One made in float64 for float32 inputs stays so, and autocast does not reach the sums."""
    mechanism, (q, k, v, _) = LinearAttention(ELU()), inputs(t=length)
    narrow = [x.float() for x in (q, k, v)]
    out = call(mechanism, *narrow, state=begun(mechanism))
    assert {leaf.dtype for leaf in out.state.inside} == {torch.float64} and out.y.y.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = call(mechanism, *narrow, state=begun(mechanism, dtype=torch.float32))
    assert {leaf.dtype for leaf in cast.state.inside} == {torch.float32}
    assert torch.allclose(cast.y.y, out.y.y, atol=1e-5)


def test_the_state_does_not_grow_and_resets_by_row():
    mechanism = LinearAttention(ELU())
    q, k, v, _ = inputs()
    fresh = begun(mechanism, 1)
    assert isinstance(fresh, UncastState) and fresh.inside.s.shape == (B, H, K, V + 1)
    used = call(mechanism, q, k, v, state=fresh).state
    half = call(mechanism, q, k, v, state=reset(fork(used), torch.tensor([True, False]))).state
    for ours, once in zip(sums(half), sums(used), strict=True):
        assert torch.allclose(ours[0], once[0]) and torch.allclose(ours[1], 2 * once[1])


@pytest.mark.parametrize("update", [AdditiveUpdate(), GatedUpdate()], ids=["sum", "gated"])
def test_a_step_writes_into_its_state_where_nothing_learns(update):
    """No copy of S and no look at the device: B7, B8."""
    mechanism, (q, k, v, extras) = LinearAttention(ELU(), update), inputs(t=1)
    state = begun(mechanism)
    place = state.inside.s.data_ptr()
    assert call(mechanism, q, k, v, state=state, extras=extras).state.inside.s.data_ptr() == place
    operations = []

    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            operations.append((function.__name__, getattr(out, "numel", int)()))
            return out

    size = state.inside.s.numel()
    with Watched():
        call(mechanism, q, k, v, state=state, extras=extras)
    assert operations and not any(
        name.startswith(("_local_scalar_dense", "cat", "is_nonzero")) for name, _ in operations
    )
    large = [name for name, numbers in operations if numbers >= size and not name.partition(".")[0].endswith("_")]
    assert all(name.startswith(("view", "expand", "unsafe_view", "_unsafe_view", "reshape", "slice")) for name in large)


@every
def test_a_step_that_learns_leaves_the_state_before_it_alone(mechanism):
    q, k, v, extras = inputs()
    before = call(mechanism, q, k, v, state=begun(mechanism), extras=extras).state
    q, k, v = (x[:, :, :1].requires_grad_() for x in (q, k, v))
    copy, extra_gate = fork(before), {"gate": extras["gate"][:, :, :1]}
    after = call(mechanism, q, k, v, numbered(1) + T, before, run(numbered(1) + T), extra_gate)
    assert all(torch.equal(x, y) for x, y in zip(before.inside, copy.inside, strict=True))
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(after.y.y.sin().sum(), (q, k, v)))


@pytest.mark.parametrize("sizes", [[1] * T, [5, 1, 7]], ids=str)
@pytest.mark.parametrize("update", [AdditiveUpdate, GatedUpdate])
def test_gradients_are_the_same_however_a_row_is_cut(update, sizes):
    """The state carries its graph, through gates and through the constants that are kept apart."""
    mechanism = LinearAttention(FAVOR(K, 8), update(), piece=4)
    leaves_of = [x.requires_grad_() for x in (*inputs()[:3], inputs()[3]["gate"])]

    def gradients(cuts):
        state, total = begun(mechanism), 0.0
        for at in torch.arange(T).split(cuts):
            q, k, v, gate = (x[:, :, at] for x in leaves_of)
            out = call(mechanism, q, k, v, numbered()[:, at], state, run(numbered()[:, at]), {"gate": gate})
            state, total = out.state, total + out.y.y.sin().sum() + out.y.lse.cos().sum()
        return torch.autograd.grad(total, leaves_of, allow_unused=True, materialize_grads=True)

    for ours, whole in zip(gradients(sizes), gradients([T]), strict=True):
        assert torch.allclose(ours, whole, atol=1e-12)
        assert update is AdditiveUpdate or whole.abs().sum() > 0


@pytest.mark.parametrize("update", [AdditiveUpdate(), GatedUpdate(), DeltaUpdate()], ids=["sum", "gated", "delta"])
def test_work_grows_with_the_row(update):
    """Numbers that a forward and a backward write, for a row four times as long: the gradient of a slice is a row."""
    mechanism = LinearAttention(ELU(), update, piece=4)

    def written(t):
        q, k, v, extras = inputs(t=t)
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        pos, numbers = numbered(t), 0

        class Counted(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                nonlocal numbers
                out = function(*args, **(kwargs or {}))
                numbers += getattr(out, "numel", int)() * (not function.is_view)
                return out

        with Counted():
            y = call(mechanism, q, k, v, pos, ctx=run(pos), extras={**extras, "rate": extras["gate"]}).y.y
            torch.autograd.grad(y.sin().sum(), (q, k, v))
        return numbers

    assert written(4 * 64) < 4.1 * written(64)


def test_key_heads_are_shared_by_groups_of_query_heads():
    q, k, v, extras = inputs(groups=1)
    for mechanism in (LinearAttention(ELU()), LinearAttention(ELU(), GatedUpdate()), FullLinearAttention(ELU())):
        shared = call(mechanism, q, k, v, extras=extras).y
        spread = call(
            mechanism,
            q,
            *(x.expand(-1, H, -1, -1) for x in (k, v)),
            extras={"gate": extras["gate"].expand(-1, H, -1, -1)},
        ).y
        assert torch.allclose(shared.y, spread.y, atol=1e-13) and torch.allclose(shared.lse, spread.lse, atol=1e-13)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_each_key_head_has_a_gate(key_heads):
    layer = Attention(QKV(16, 4, key_heads=key_heads), LinearAttention(ELU(), GatedUpdate()))
    assert layer.side is None and layer.key_side.weight.shape == (key_heads, 16)
    x = torch.randn(B, T, 16)
    whole, state, done = layer(x).y, layer.start(B, T), []
    for t in range(T):
        out = layer(x[:, t : t + 1], state, run(numbered()[:, t : t + 1]))
        state = out.state
        done.append(out.y)
    assert torch.allclose(torch.cat(done, 1), whole, atol=1e-12)


@pytest.mark.parametrize("update", [AdditiveUpdate(), GatedUpdate()], ids=["sum", "gated"])
def test_remembering_alone_leaves_the_same_state(update):
    layer, x = Attention(QKV(16, 2), LinearAttention(ELU(), update)), torch.randn(B, T, 16)
    expected = layer(x, layer.start(B, T), run(numbered())).state
    actual = layer(x, layer.start(B, T), run(numbered()).replace(remember=True)).state
    assert all(torch.allclose(a, b, atol=1e-13) for a, b in zip(actual.inside, expected.inside, strict=True))


@pytest.mark.parametrize("rule", [AdditiveUpdate(), GatedUpdate()], ids=["sum", "gated"])
def test_the_lse_is_the_log_of_the_sum_of_the_kernel_and_merges(rule):
    q, k, v, extras = inputs()
    mechanism = LinearAttention(ELU(), rule)
    whole = call(mechanism, q, k, v, extras=extras).y
    odd = torch.where(numbered() % 2 == 1, numbered(), -1)
    even = torch.where(numbered() % 2 == 0, numbered(), -1)
    joined = merge(*(call(mechanism, q, k, v, k_pos, extras=extras).y for k_pos in (odd, even)))
    assert torch.allclose(whole.y, joined.y, atol=1e-12) and torch.allclose(whole.lse, joined.lse, atol=1e-12)
    if isinstance(rule, AdditiveUpdate):
        kernel = torch.where(q > 0, q + 1, q.exp()) @ torch.where(k > 0, k + 1, k.exp()).mT
        assert torch.allclose(whole.lse, (kernel * torch.ones(T, T).tril()).sum(-1).log(), atol=1e-12)


class Scaled(ELU):
    """The same kernel, half of it moved into the constants: what a stabilised exponential map does."""

    def forward(self, x, is_query):
        phi, constant = super().forward(x, is_query)
        level = phi.amax(-1, keepdim=True)
        return phi / level, constant + level[..., 0].log()


def test_what_a_map_leaves_out_is_added_back():
    q, k, v, extras = inputs()
    for mechanism in (LinearAttention, lambda map: LinearAttention(map, GatedUpdate(), piece=3), FullLinearAttention):
        plain, scaled = (call(mechanism(m), q, k, v, extras=extras).y for m in (ELU(), Scaled()))
        assert torch.allclose(plain.y, scaled.y, atol=1e-12) and torch.allclose(plain.lse, scaled.lse, atol=1e-12)


def test_gates_come_from_the_input():
    """Attention projects one number per head and token; the layer is the recurrence with their sigmoid."""
    layer = Attention(QKV(16, H), LinearAttention(ELU(), GatedUpdate()), aggregation=Concat())
    x = torch.randn(B, T, 16)
    queries, keys = layer.projection.queries_and_keys(x, numbered())
    gate = (x @ layer.key_side.weight.T + layer.key_side.bias).transpose(1, 2)[..., None]
    expected, *_ = recurrence(layer.mechanism, queries.q, keys.k, keys.v[..., :V], gate)
    y = layer(x, None, run(numbered())).y.unflatten(-1, (H, K)).transpose(1, 2)
    assert torch.allclose(y[..., :V], expected, atol=1e-12)


@pytest.mark.parametrize("sources", [T, T + 2])
def test_causal_sums_of_another_sequence_are_refused(sources):
    """Whether a sequence reads itself is told, never guessed from positions, which may be equal: A4."""
    with pytest.raises(ValueError, match=r"^LinearAttention .* Use FullLinearAttention\(map\) for cross-attention$"):
        Attention(QKV(16, 2), LinearAttention(ELU()), cross=True)
    q, k, v = torch.randn(B, H, T, K), torch.randn(B, H, sources, K), torch.randn(B, H, sources, V)
    with pytest.raises(ValueError, match="for cross-attention"):
        call(LinearAttention(ELU()), q, k, v, own=False)
    with pytest.raises(ValueError, match="for cross-attention"):
        LinearAttention(ELU())(Queries(q, numbered()[:, None]), None, None, run(numbered()))
    with pytest.raises(NoState):
        begun(LinearAttention(ELU()), cross=True)


COMPILED = """
import torch
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from kinformer.nn.maps.elu import ELU
from kinformer.nn.mechanisms.delta_update import DeltaUpdate
from kinformer.nn.mechanisms.linear import LinearAttention

q, pos = torch.randn(1, 2, 5, 4), torch.arange(5)[None]
try:
    torch.compile(LinearAttention(ELU()), backend="eager")(
        Queries(q, pos[:, None]), Keys(q, q, pos[:, None], own=False), None, Context(pos, run=True)
    )
except ValueError as error:
    print(error)
"""


@pytest.mark.prove
def test_compiled_they_are_refused_too():
    """In a process of its own, because annotations that are checked cannot be compiled."""
    process = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True)
    assert process.stdout.startswith("LinearAttention sums one sequence in its order"), process.stderr


def test_what_cannot_be_honoured_is_refused():
    q, k, v, _ = inputs()
    pos = numbered()
    with pytest.raises(ValueError, match="run=True"):
        call(LinearAttention(ELU()), q, k, v, ctx=Context(pos))
    for ctx in (Context(pos, run=True, only=Causal()), Context(pos, run=True, also=Causal())):
        for mechanism in (LinearAttention(ELU()), FullLinearAttention(ELU())):
            with pytest.raises(ValueError, match=r"ctx\.only or ctx\.also"):
                call(mechanism, q, k, v, ctx=ctx)
    with pytest.raises(ValueError, match="13 queries and 14 keys"):
        call(LinearAttention(ELU()), q, torch.randn(B, H, T + 1, K), torch.randn(B, H, T + 1, V))
    with pytest.raises(NoState, match=r"Use LinearAttention\(map\)"):
        begun(FullLinearAttention(ELU()))
    with pytest.raises(ValueError, match="share 2 key heads"):
        call(LinearAttention(ELU()), torch.randn(B, 3, T, K), *inputs()[1:3])
    with pytest.raises(ValueError, match="give a feature map, such as ELU"):
        unchecked(LinearAttention, ELU)
    with pytest.raises(ValueError, match="piece=0"):
        LinearAttention(ELU(), piece=0)


def unchecked(kind, *args):
    """Made as outside of the tests, where nothing checks annotations."""
    return inspect.unwrap(kind.__init__)(kind.__new__(kind), *args)
