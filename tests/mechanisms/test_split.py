"""SplitHeads: each mechanism does with its heads what it does alone."""

import pytest
import torch

from kinformer.attention import Attention
from kinformer.biases.adaptive_span import DynamicSpan
from kinformer.core.layer import Context
from kinformer.core.mechanism import NoState
from kinformer.maps.elu import ELU
from kinformer.mechanisms.explicit import Explicit, FromBelow
from kinformer.mechanisms.linear import Linear
from kinformer.mechanisms.routing import Routing
from kinformer.mechanisms.softmax import Softmax
from kinformer.mechanisms.split import SplitHeads
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K = 2, 4, 9, 4
POS = torch.arange(T).expand(B, -1)


def inputs(groups=H):
    return torch.randn(B, H, T, K), torch.randn(B, groups, T, K), torch.randn(B, groups, T, K)


def call(mechanism, q, k, v, sides=None, **told):
    return mechanism(q, k, v, POS, None, Context(POS, run=True, **told), sides or {})


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_each_part_has_its_own_heads(groups):
    local, routing = Softmax(Causal() & Band(2)), Routing(2, K, 3).train()
    q, k, v = inputs(groups)
    out = call(SplitHeads(local, routing), q, k, v)
    for n, part in enumerate((local, routing)):
        pieces = [x if x.shape[1] == 1 else x.chunk(2, 1)[n] for x in (q, k, v)]
        alone = call(part, *pieces)
        assert torch.equal(out.y.y[:, 2 * n : 2 * n + 2], alone.y.y)
        assert torch.equal(out.y.lse[:, 2 * n : 2 * n + 2], alone.y.lse)
    assert torch.equal(out.aux["1.commitment"], alone.aux["commitment"])
    assert torch.equal(out.stats["1.clusters"], alone.stats["clusters"])
    assert set(out.aux) == {"1.commitment"} and set(out.stats) == {"1.clusters"}


def test_what_is_asked_of_the_input_and_what_comes_from_below_reach_their_part():
    span = DynamicSpan(5, ramp=2)
    parts = Softmax(Causal(), span), Explicit(Causal(), before=FromBelow(), up=True)
    mechanism, (q, k, v) = SplitHeads(*parts), inputs()
    assert mechanism.sides(K, K) == {"0.span": 1}
    sides = torch.randn(B, H, T, 1)
    below = {"1.scores": torch.randn(B, 2, T, T), "1.scores_pos": POS}
    out = call(mechanism, q, k, v, {"0.span": sides}, below=below)
    first = call(parts[0], *(x[:, :2] for x in (q, k, v)), {"span": sides[:, :2]})
    second = call(parts[1], *(x[:, 2:] for x in (q, k, v)), below={k[2:]: x for k, x in below.items()})
    assert torch.equal(out.y.y, torch.cat([first.y.y, second.y.y], 1))
    assert torch.equal(out.aux["0.span"], first.aux["span"])
    assert torch.equal(out.up["1.scores"], second.up["scores"])


def test_parts_within_parts_decode():
    inner = SplitHeads(Softmax(Causal(), DynamicSpan(5, ramp=2)), Linear(ELU()))
    layer = Attention(16, 4, SplitHeads(Softmax(Causal() & Band(2)), inner), key_heads=4)
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
    with pytest.raises(ValueError, match="4 heads cannot be split evenly among 3 mechanisms; give a multiple of them"):
        call(halves, *inputs())
    with pytest.raises(ValueError, match="4 heads of keys cannot be split evenly among 3"):
        halves.start(1, 8, 4, K, K)
    with pytest.raises(ValueError, match="SplitHeads got no mechanism"):
        SplitHeads()
    with pytest.raises(NoState):
        halves.start(1, 8, 3, K, K)
