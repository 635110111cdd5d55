"""Retrieval: the paper's equation by loops, ties, what has no gradient, documents, and a memory that grows."""

import inspect
import math

import pytest
import torch

from kinformer.core.choice import run_checkpointed
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.core.pattern import Heads
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.document import Document
from kinformer.core.patterns.segment import Segment
from kinformer.core.state import detach
from kinformer.core.unit_vector import unit
from kinformer.nn.attention import Attention
from kinformer.nn.biases.t5 import T5
from kinformer.nn.mechanisms import retrieval
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K = 2, 2, 13, 4


def inputs(groups=H):
    return torch.randn(B, H, T, K), torch.randn(B, groups, T, K), torch.randn(B, groups, T, K)


def call(mechanism, q, k, v, pos=None, state=None, **limits):
    pos = torch.arange(q.shape[2]).expand(len(q), -1) if pos is None else pos
    ctx = Context(pos, run=True, **limits)
    return mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), state, ctx)


def begun(mechanism, length, k, v):
    sizes = HeadSizes(len(mechanism.head_scale), k.shape[1], v.shape[1], k.shape[3], v.shape[3])
    return mechanism.start(StateSpec(len(k), length, k.dtype, k.device), sizes)


def shaken(mechanism):
    for weight in mechanism.parameters():
        weight.data.add_(torch.randn_like(weight))
    return mechanism


def softmax_of(pairs, values):
    if not pairs:
        return torch.zeros(values.shape[-1])
    logits = torch.stack([s for _, s in pairs])
    return sum(w * values[j] for w, (j, _) in zip(logits.softmax(0), pairs, strict=True))


@pytest.mark.parametrize("combine", ["gate", "apart", "joint"])
@pytest.mark.parametrize("window", [None, Causal() & Band(4), Band(6, -1)], ids=["segments", "window", "code"])
@pytest.mark.parametrize(
    ("groups", "length", "memory", "cache", "k"), [(2, 3, 5, 0, 2), (1, 4, 6, 2, 3), (2, 5, 20, 1, 40)]
)
def test_it_is_its_equation(groups, length, memory, cache, k, window, combine):
    """y = g y_far + (1 - g) y_near, or one softmax; the k best |s_h| q.k / (|q| |k|) of the memory before the segment.

    Apart from what is near, where that is wanted or one softmax reads both.
    """
    choices = {"combine": "joint" if combine == "joint" else "gate", "apart": combine == "apart"}
    whole = {"cache": cache} if window is None else {"near": window}
    mechanism = shaken(Retrieval(H, length, memory, k, T5(H, 4, 6), **whole, **choices))
    cache = cache if window is None else int(window.reach()[0])
    mechanism.head_scale.data[0] = -1.5
    q, keys, v = inputs(groups)
    read = call(mechanism, q, keys, v).y.y
    for b, h, i in ((b, h, i) for b in range(B) for h in range(H) for i in range(T)):
        g = h * groups // H
        begin = i // length * length
        whole = [j for j in range(i + 1) if (j >= begin - cache if window is None else bool(window(b, h, i, j)))]
        back = max(cache, memory) if combine == "gate" else cache + memory
        searched = [j for j in range(max(0, begin - back), begin) if combine == "gate" or j not in whole]

        def score(j, b=b, h=h, i=i, g=g):
            a, c = q[b, h, i], keys[b, g, j]
            sizes = (math.sqrt(float(a @ a) + 1e-6), math.sqrt(float(c @ c) + 1e-6))
            return abs(mechanism.head_scale[h]) * (a @ c) / sizes[0] / sizes[1]

        bucket = mechanism.bias.bucket(torch.arange(T))
        near = [(j, score(j) + mechanism.bias.table[bucket[i - j], h]) for j in whole]
        far = sorted(((j, score(j)) for j in searched), key=lambda pair: -pair[1])[:k]
        if combine == "joint":
            expected = softmax_of(near + far, v[b, g])
        else:
            gate = torch.sigmoid(mechanism.gate[h])
            expected = gate * softmax_of(far, v[b, g]) + (1 - gate) * softmax_of(near, v[b, g])
        torch.testing.assert_close(read[b, h, i], expected, rtol=0, atol=1e-12)


def test_where_everything_is_retrieved_one_softmax_is_attention():
    mechanism = Retrieval(H, 3, 6, T, combine="joint", cache=1)
    q, k, v = inputs()
    plain = call(Softmax(mechanism.pattern, scale=1.0), unit(q, 1e-6), unit(k, 1e-6), v).y
    read = call(mechanism, q, k, v).y
    torch.testing.assert_close(read.y, plain.y, rtol=0, atol=1e-12)
    torch.testing.assert_close(read.lse, plain.lse, rtol=0, atol=1e-12)


def test_it_starts_as_the_mean_of_both():
    assert torch.equal(Retrieval(H, 3, 6).gate.sigmoid(), torch.full((H,), 0.5))
    assert torch.equal(Retrieval(H, 3, 6).head_scale, torch.ones(H))


@pytest.mark.parametrize("combine", ["gate", "joint"])
def test_of_equal_keys_the_latest_are_retrieved_however_the_row_is_cut(combine):
    mechanism = Retrieval(1, 4, 8, 3, combine=combine)
    q, k, v = torch.ones(1, 1, 12, K), torch.ones(1, 1, 12, K), torch.eye(12)[None, None]
    whole = call(mechanism, q, k, v).y.y
    assert whole[0, 0, 11].nonzero().flatten().tolist() == [5, 6, 7, 8, 9, 10, 11]
    state, pieces = begun(mechanism, 12, k, v), []
    for at in torch.arange(12).split([5, 1, 6]):
        out = call(mechanism, q[:, :, at], k[:, :, at], v[:, :, at], at[None], state)
        state = out.state
        pieces.append(out.y.y)
    assert torch.equal(torch.cat(pieces, 2), whole)


@pytest.mark.parametrize("combine", ["gate", "joint"])
def test_nothing_learns_through_what_earlier_segments_left(combine):
    """A6: neither through the memory nor through the cache, which used to be read before the detach."""
    mechanism = shaken(Retrieval(H, 4, 8, 3, T5(H), cache=1, combine=combine))
    q, k, v = (x.requires_grad_() for x in inputs())
    y = call(mechanism, q, k, v).y.y[:, :, 9]  # its segment is 8..11, its cache 7, its memory 0..6
    learned = [mechanism.head_scale, mechanism.bias.table, *([mechanism.gate] if combine == "gate" else [])]
    parts = torch.autograd.grad(y.sin().sum(), [q, k, v, *learned], retain_graph=True)
    for gradient in parts[1:3]:
        has_gradient = gradient.abs().sum((0, 1, 3)) > 0
        assert has_gradient.tolist() == [False] * 8 + [True] * 2 + [False] * 3
    assert all((parts[n] != 0).all() for n in (3, *range(5, 3 + len(learned)))) and (parts[4] != 0).any()
    alone = call(mechanism, q, k, torch.where(torch.arange(T)[:, None] < 7, v, 0.0).detach()).y.y[:, :, 9]
    assert (torch.autograd.grad(alone.sin().sum(), q)[0][:, :, 9] != 0).all()  # a query learns what to ask for


@pytest.mark.parametrize("combine", ["gate", "joint"])
@pytest.mark.parametrize("cuts", [[4, 4, 4, 1], [1] * T, [3, 6, 4], [11, 2]], ids=str)
def test_gradients_are_the_same_however_a_row_is_cut(cuts, combine):
    """A6: what is detached goes by positions, and the state carries its graph, for segments that are cut."""
    mechanism = shaken(Retrieval(H, 4, 8, 3, T5(H), cache=2, combine=combine))
    qkv = [x.requires_grad_() for x in inputs()]

    def gradients(sizes):
        state, total = begun(mechanism, T, *qkv[1:]), 0.0
        for at in torch.arange(T).split(sizes):
            out = call(mechanism, *(x[:, :, at] for x in qkv), at.expand(B, -1), state)
            state, total = out.state, total + out.y.y.sin().sum()
        return torch.autograd.grad(total, [*qkv, *mechanism.parameters()])

    whole = torch.autograd.grad(call(mechanism, *qkv).y.y.sin().sum(), [*qkv, *mechanism.parameters()])
    for ours, expected in zip(gradients(cuts), whole, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_segments_whose_state_was_detached_lose_nothing():
    """Between segments there is nothing to detach but what is not learned through anyway."""
    mechanism = shaken(Retrieval(H, 4, 8, 3, cache=2))
    qkv = [x.requires_grad_() for x in inputs()]
    state, total = begun(mechanism, T, *qkv[1:]), 0.0
    for at in torch.arange(T).split(4):
        out = call(mechanism, *(x[:, :, at] for x in qkv), at.expand(B, -1), state)
        state, total = detach(out.state), total + out.y.y.sin().sum()
    expected = torch.autograd.grad(call(mechanism, *qkv).y.y.sin().sum(), qkv)
    for ours, theirs in zip(torch.autograd.grad(total, qkv), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_what_was_found_is_kept_where_the_layer_is_computed_again(monkeypatch):
    """Choices of the forward are those of the backward's recomputation, even if the search would now end otherwise."""
    layer = Attention(QKV(16, 2), shaken(Retrieval(2, 3, 9, 2)))
    x = torch.randn(2, T, 16, requires_grad=True)
    expected = torch.autograd.grad(layer(x).y.sin().sum(), x)[0]
    y = run_checkpointed(lambda z: layer(z).y, x)
    monkeypatch.setattr(
        retrieval, "find_best_keys", lambda request, most, *_: torch.zeros(2, 2, T, most, dtype=torch.long)
    )
    torch.testing.assert_close(torch.autograd.grad(y.sin().sum(), x)[0], expected, rtol=0, atol=1e-12)


def test_the_state_is_a_cache_of_what_may_still_be_read():
    mechanism = Retrieval(H, 4, 8, 3)
    q, k, v = inputs()
    state = begun(mechanism, 100, k, v)
    assert state.pos.shape[1] == 12
    state = call(mechanism, q, k, v, state=state).state
    assert sorted(pos for pos in state.pos[0].tolist() if pos >= 0) == list(range(4, T))


@pytest.mark.parametrize(
    ("near", "cache"),
    [
        (Causal() & Segment(5, 5), 5),
        (Causal() & Segment(5, 2), 2),
        (Causal() & Segment(3, 0), 2),
        (Causal() & Band(4), 4),
        (Causal() & Heads(Band(2), Band(7)), 7),
        (Causal() & Document(torch.zeros(1, 9, dtype=torch.long)) & Band(6), 6),
    ],
)
def test_the_search_goes_back_as_far_as_was_asked_whatever_is_read_whole(near, cache):
    """Of a near that is a segment and the one before it only that one lies before the segment."""
    layer = Retrieval(2, 5, 7, 2, near=near)
    assert layer.cache == cache and layer.pattern == Causal() & Segment(5, 7)
    if near == Causal() & Segment(5, 5):
        pos = torch.arange(23).expand(1, -1)
        ours, other = (
            Attention(QKV(8, 2), Retrieval(2, 5, 7, 2, **keywords)) for keywords in ({"near": near}, {"cache": 5})
        )
        other.load_state_dict(ours.state_dict())
        x = torch.randn(1, 23, 8)
        assert torch.allclose(ours(x, None, Context(pos)).y, other(x, None, Context(pos)).y, atol=1e-12)


def test_the_memory_can_be_made_larger_after_training():
    small, large = (Retrieval(H, 2, memory, 3, T5(H)) for memory in (3, 9))
    shaken(small)
    large.load_state_dict(small.state_dict())
    q, k, v = inputs()
    before = call(small, q, k, v).y.y
    small.memory = 9
    assert torch.equal(call(small, q, k, v).y.y, call(large, q, k, v).y.y)
    assert not torch.equal(call(small, q, k, v).y.y, before)
    assert begun(small, 100, k, v).pos.shape[1] == 11


def test_documents_of_one_row_do_not_find_each_other():
    mechanism = shaken(Retrieval(H, 3, 9, 2))
    q, k, v = inputs()
    ids = torch.arange(T).ge(5).long().expand(B, -1)
    whole = call(mechanism, q, k, v, only=Document(ids)).y.y
    second = torch.arange(5, T)
    own = call(mechanism, *(x[:, :, second] for x in (q, k, v)), second.expand(B, -1)).y.y
    torch.testing.assert_close(whole[:, :, 5:], own, rtol=0, atol=1e-12)


def test_what_a_batch_adds_can_be_retrieved():
    mechanism = Retrieval(1, 2, 2, 1)
    q, k, v = torch.ones(1, 1, 8, K), torch.randn(1, 1, 8, K), torch.eye(8)[None, None]
    k[:, :, 0] = 1.0
    read = call(mechanism, q, k, v, also=Tokens(1)).y.y[0, 0, 7]
    assert read.nonzero().flatten().tolist() == [0, 6, 7] and read[0] == 0.5  # all of the far half, none of the near


def unchecked(kind, *args, **keywords):
    """Made as outside of the tests, where nothing checks annotations."""
    return inspect.unwrap(kind.__init__)(kind.__new__(kind), *args, **keywords)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Retrieval(2, 4, 8, 0),
            r"k=0 must be at least 1\. To retrieve no keys, use Softmax\(Causal\(\) & Segment\(4, 0\)",
        ),
        (lambda: unchecked(Retrieval, 2, 4, 8, combine="sum"), "combine='sum' is not known; choose 'gate' or 'joint'"),
        (lambda: Attention(QKV(16, 4), Retrieval(2, 4, 8))(torch.randn(1, 3, 16)), "made for 2 heads, but got 4"),
        (lambda: call(Retrieval(1, 4, 8), *inputs()), r"made for 1 heads, but got 2\. Create it with heads=2"),
        (lambda: Attention(QKV(16, 2), Retrieval(2, 4, 8), cross=True), "Use Softmax to read a source"),
        (lambda: Retrieval(2, 0, 8), "length=0: give a whole number of at least 1"),
        (
            lambda: Retrieval(2, 4, 8, near=Causal()),
            r"near=Causal\(\) reads ahead or has no limit to the past\. Pass a window",
        ),
        (
            lambda: Retrieval(2, 4, 8, near=Band(2)),
            r"near=Band.* reads ahead or has no limit to the past\. Pass a window",
        ),
        (
            lambda: Retrieval(2, 4, 8, cache=3, near=Causal() & Band(5)),
            r"cache=3 and near=.* both choose the keys that are read in full\. Pass only one of them",
        ),
        (lambda: Retrieval(2, 4, -1), "memory=-1: give a whole number of at least 0"),
    ],
)
def test_what_is_wrong_is_said_in_words(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_one_of_segments_is_built_without_numbers() -> None:
    with torch.device("meta"):
        layer = Retrieval(2, 4, 6, 2, near=Causal() & Segment(4, 1))
    assert layer.cache == Retrieval(2, 4, 6, 2, near=Causal() & Segment(4, 1)).cache
