"""SplitHeads: each mechanism does with its heads what it does alone."""

import inspect

import pytest
import torch

from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context, PerPair, Want
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Heads
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.biases.adaptive_span import DynamicSpan
from kinformer.nn.maps.elu import ELU
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.global_softmax import GlobalSoftmax
from kinformer.nn.mechanisms.linear import GatedUpdate, LinearAttention
from kinformer.nn.mechanisms.routing import Routing
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.split import SplitHeads
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.random import Random
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.scores.residual import ResidualScores

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K = 2, 4, 9, 4
POS = torch.arange(T).expand(B, -1)


def inputs(groups=H):
    return torch.randn(B, H, T, K), torch.randn(B, groups, T, K), torch.randn(B, groups, T, K)


def call(mechanism, q, k, v, extras=None, *, head=0, key_extras=None, **keywords):
    ctx = Context(POS, run=True, **keywords)
    queries = Queries(q, ctx.by_head, extras or {}, head=head)
    return mechanism(queries, Keys(k, v, ctx.by_head, key_extras or {}), None, ctx)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_each_part_has_its_own_heads(groups):
    local, routing = Softmax(Causal() & Band(2)), Routing(2, K, 3).train()
    q, k, v = inputs(groups)
    out = call(SplitHeads(local, routing), q, k, v)
    for n, part in enumerate((local, routing)):
        pieces = [x if x.shape[1] == 1 else x.chunk(2, 1)[n] for x in (q, k, v)]
        alone = call(part, *pieces, head=2 * n)
        assert torch.equal(out.y.y[:, 2 * n : 2 * n + 2], alone.y.y)
        assert torch.equal(out.y.lse[:, 2 * n : 2 * n + 2], alone.y.lse)
    assert torch.equal(out.aux["1.commitment"], alone.aux["commitment"])
    assert torch.equal(out.stats["1.clusters"], alone.stats["clusters"])
    assert set(out.aux) == {"1.commitment"} and set(out.stats) == {"1.clusters"}


def test_what_is_asked_of_the_input_and_what_comes_from_below_reach_their_part():
    span = DynamicSpan(5, ramp=2)
    parts = Softmax(Causal(), span), Explicit(Causal(), score=ResidualScores(), up=True)
    mechanism, (q, k, v) = SplitHeads(*parts), inputs()
    assert {name: side.width for name, side in mechanism.query_extras(HeadSizes(H, H, H, K, K)).items()} == {
        "0.span": 1
    }
    assert mechanism.wants == (Want("1.scores", optional=True),) and mechanism.sends == {"1.scores"}
    extras, pos = torch.randn(B, H, T, 1), POS[:, None]
    below = {"1.scores": PerPair(torch.randn(B, 2, T, T), pos, pos)}
    out = call(mechanism, q, k, v, {"0.span": extras}, below=below)
    first = call(parts[0], *(x[:, :2] for x in (q, k, v)), {"span": extras[:, :2]})
    second = call(parts[1], *(x[:, 2:] for x in (q, k, v)), below={"scores": below["1.scores"]}, head=2)
    assert torch.equal(out.y.y, torch.cat([first.y.y, second.y.y], 1))
    assert torch.equal(out.aux["0.span"], first.aux["span"])
    assert torch.equal(out.up["1.scores"].scores, second.up["scores"].scores)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_what_is_asked_of_keys_reaches_its_part(groups):
    gated, wide = LinearAttention(ELU(), GatedUpdate()), GlobalSoftmax(Causal() & Band(2), Causal() & Rows(3))
    mechanism, (q, k, v), sizes = SplitHeads(gated, wide), inputs(groups), HeadSizes(H, groups, groups, K, K)
    widths = {name: side.width for name, side in mechanism.key_extras(sizes).items()}
    assert widths == {"0.gate": 1, "1.global_k": K, "1.global_v": K}
    key_extras = {name: torch.randn(B, groups, T, width) for name, width in widths.items()}
    extras = {"1.global_q": torch.randn(B, H, T, K)}
    out = call(mechanism, q, k, v, extras, key_extras=key_extras)
    for n, part in enumerate((gated, wide)):
        pieces = [x if x.shape[1] == 1 else x.chunk(2, 1)[n] for x in (q, k, v)]
        own = {name[2:]: x for name, x in key_extras.items() if name.startswith(f"{n}.")}
        own = {name: x if groups == 1 else x.chunk(2, 1)[n] for name, x in own.items()}
        alone = call(part, *pieces, {"global_q": extras["1.global_q"][:, 2:]}, key_extras=own)
        assert torch.equal(out.y.y[:, 2 * n : 2 * n + 2], alone.y.y)


@pytest.mark.parametrize(
    "pattern", [Causal() & Random(1, block=2), Heads(Causal(), Causal() & Band(0), Band(1) & Causal())], ids=repr
)
def test_head_numbers_go_on(pattern):
    """A27: a pattern that differs by head repeated in each part; now four heads in two parts are four heads."""
    q, k, v = inputs()
    whole = call(Softmax(pattern), q, k, v).y
    for parts in (2, 4):
        assert torch.equal(call(SplitHeads(*(Softmax(pattern) for _ in range(parts))), q, k, v).y.y, whole.y)
    inner = SplitHeads(Softmax(pattern), Softmax(pattern))
    assert torch.equal(call(SplitHeads(Softmax(pattern), inner), q, k, v).y.y, whole.y)
    assert not torch.equal(call(Softmax(pattern), *(x[:, 2:] for x in (q, k, v))).y.y, whole.y[:, 2:])


def test_they_start_as_copies_of_their_own_heads():
    layer = Attention(QKV(16, 4), SplitHeads(Softmax(Band(2)), GlobalSoftmax(Band(2), Rows(3))))
    plain = Attention(QKV(16, 4), SplitHeads(Softmax(Band(2)), Softmax(Band(2) | Rows(3))))
    plain.load_state_dict({key: value for key, value in layer.state_dict().items() if "side." not in key})
    x = torch.randn(B, T, 16)
    torch.testing.assert_close(layer(x).y, plain(x).y, rtol=0, atol=1e-12)


def test_parts_within_parts_decode():
    inner = SplitHeads(Softmax(Causal(), DynamicSpan(5, ramp=2)), LinearAttention(ELU(), GatedUpdate()))
    layer = Attention(QKV(16, 4, key_heads=4), SplitHeads(Softmax(Causal() & Band(2)), inner))
    x = torch.randn(B, T, 16)
    whole, state, done = layer(x, None, Context(POS, run=True)).y, layer.start(B, T), []
    for at in torch.arange(T).split([4, 1, 4]):
        out = layer(x[:, at], state, Context(POS[:, at], run=True))
        state = out.state
        done.append(out.y)
    torch.testing.assert_close(torch.cat(done, 1), whole, rtol=0, atol=1e-12)


def test_without_an_lse_of_every_part_there_is_none():
    assert call(SplitHeads(Softmax(Causal()), Softmax(Causal(), lse=False)), *inputs()).y.lse is None


def test_what_is_wrong_is_said_in_words():
    halves = SplitHeads(Softmax(Causal()), Softmax(Full()), Softmax(Causal()))
    with pytest.raises(
        ValueError,
        match=r"4 heads cannot be split evenly among 3 mechanisms\. Use a multiple of the number of mechanisms",
    ):
        call(halves, *inputs())
    spec = StateSpec(1, 8, torch.float64, torch.device("cpu"))
    with pytest.raises(ValueError, match="4 heads of keys cannot be split evenly among 3"):
        halves.start(spec, HeadSizes(6, 4, 4, K, K))
    with pytest.raises(ValueError, match="4 heads cannot be split evenly among 3"):
        Attention(QKV(16, 4), halves)
    with pytest.raises(ValueError, match="SplitHeads got no mechanism"):
        SplitHeads()
    with pytest.raises(ValueError, match="is the class Softmax; give a mechanism"):
        inspect.unwrap(SplitHeads.__init__)(SplitHeads.__new__(SplitHeads), Softmax)
    with pytest.raises(NoState):
        halves.start(spec, HeadSizes(3, 3, 3, K, K))
