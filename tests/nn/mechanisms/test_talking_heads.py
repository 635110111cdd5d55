"""Talking heads: the equation by loops with three numbers of heads, and what mixing must not let through."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from kinformer.core.layer import Context
from kinformer.core.pattern import Heads, Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.aggregations.out_projection import Concat, OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.biases.adaptive_span import AdaptiveSpan
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.talking_heads import MixHeads
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV

pytestmark = pytest.mark.usefixtures("float64")


def talking(
    pattern: Pattern, h_k: int, h: int, h_v: int, *, key_heads: int | None = None, bias: bool = False, out: bool = False
) -> Attention:
    before, after = MixHeads(h_k, h, bias=bias), MixHeads(h, h_v, bias=bias)
    for mix in (before, after) if bias else ():
        torch.nn.init.normal_(mix.mix.bias)
    aggregation = OutProjection(h_v, 4, 16) if out else Concat()
    mechanism = Explicit(pattern, before=before, after=after)
    return Attention(QKV(16, h_k, head_dim=4, key_heads=key_heads), mechanism, aggregation=aggregation)


def naive(layer: Attention, x: Tensor, pos: Tensor, pattern: Pattern) -> Tensor:
    """J = Q K^T / sqrt(d_k) (h_k heads); L = J P_l (h heads); W = softmax(L); U = W P_w (h_v heads); O = U V."""
    queries, keys = layer.projection(x, pos, x, pos)
    q, k, v = queries.q, keys.k, keys.v
    before, after = layer.mechanism.before.mix, layer.mechanism.after.mix
    h_k, h_v, length = q.shape[1], after.out_features, x.shape[1]
    y = torch.zeros(len(x), h_v, length, v.shape[-1])
    for b, i in ((b, i) for b in range(len(x)) for i in range(length)):
        reads = [j for j in range(length) if min(pos[b, i], pos[b, j]) >= 0 and pattern(b, 0, pos[b, i], pos[b, j])]
        mixed = []
        for j in reads:
            products = [q[b, h, i].dot(k[b, h * k.shape[1] // h_k, j]) / math.sqrt(q.shape[-1]) for h in range(h_k)]
            mixed.append(linear(torch.stack(products), before.weight, before.bias))
        for n, j in enumerate(reads):
            weight = linear(torch.stack(mixed).softmax(0)[n], after.weight, after.bias)
            for g in range(h_v):
                y[b, g, i] += weight[g] * v[b, g * v.shape[1] // h_v, j]
    return layer.aggregation(y, pos)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pattern", [Causal(), Causal() & Band(3), Full()], ids=repr)
@pytest.mark.parametrize("counts", [(2, 2, 2, None), (2, 3, 4, None), (4, 3, 2, 2), (3, 5, 2, 1)], ids=str)
def test_it_is_its_equation(counts: tuple, pattern: Pattern, bias: bool) -> None:
    *heads, key_heads = counts
    layer = talking(pattern, *heads, key_heads=key_heads, bias=bias, out=True)
    x, pos = torch.randn(2, 7, 16), torch.tensor([[0, 1, 2, 3, 4, 5, 6], [-1, -1, 0, 1, 2, 3, -1]])
    torch.testing.assert_close(layer(x, None, Context(pos)).y, naive(layer, x, pos, pattern), rtol=0, atol=1e-12)


def test_values_may_have_heads_of_their_own() -> None:
    """The paper's h_v: four heads of queries, two of the softmax, three of values."""
    layer = Attention(
        QKV(16, 4, value_heads=3, v_dim=5),
        Explicit(Causal(), before=MixHeads(4, 2), after=MixHeads(2, 3)),
        aggregation=OutProjection(3, 5, 16),
    )
    x, pos = torch.randn(2, 7, 16), torch.arange(7).expand(2, -1)
    assert layer.projection.keys(x, pos).v.shape == (2, 3, 7, 5)
    whole = layer(x, None, Context(pos)).y
    torch.testing.assert_close(whole, naive(layer, x, pos, Causal()), rtol=0, atol=1e-12)
    state, done = layer.start(2, 7), []
    for at in torch.arange(7).split([3, 1, 3]):
        out = layer(x[:, at], state, Context(pos[:, at]))
        state = out.state
        done.append(out.y)
    torch.testing.assert_close(torch.cat(done, 1), whole, rtol=0, atol=1e-12)


def test_the_biases_give_a_forbidden_key_no_weight() -> None:
    layer = talking(Causal(), 2, 3, 2, bias=True)
    pos = torch.arange(6)[None]
    jacobian = torch.autograd.functional.jacobian(
        lambda x: layer(x, None, Context(pos)).y[0].sum(-1), torch.randn(1, 6, 16)
    )
    assert torch.equal(jacobian[:, 0].abs().sum(-1) > 0, Causal().matrix(6))


@pytest.mark.parametrize("cuts", [[1] * 11, [4, 1, 6], [11]], ids=str)
def test_it_decodes(cuts: list[int]) -> None:
    layer = talking(Causal() & Band(3), 4, 3, 2, key_heads=2, bias=True)
    x, pos = torch.randn(2, 11, 16), torch.stack([torch.arange(11), torch.arange(11) - 2]).clamp_min(-1)
    whole, state, done = layer(x, None, Context(pos)).y, layer.start(2, 11), []
    for piece, piece_pos in zip(x.split(cuts, 1), pos.split(cuts, 1), strict=True):
        out = layer(piece, state, Context(piece_pos))
        state = out.state
        done.append(out.y)
    torch.testing.assert_close(torch.cat(done, 1), whole, rtol=0, atol=1e-12)


def test_with_patterns_by_head_a_value_head_hears_of_what_any_head_reads() -> None:
    layer = talking(Heads(Causal() & Band(0), Causal()), 2, 2, 2, bias=True)
    pos = torch.arange(5)[None]
    x = torch.randn(1, 5, 16)
    queries, keys = layer.projection(x, pos, x, pos)

    def read(v: Tensor) -> Tensor:
        return layer.mechanism(queries, keys._replace(v=v), None, Context(pos)).y.y[0].sum(-1)

    jacobian = torch.autograd.functional.jacobian(read, keys.v)[:, :, 0].abs().sum(-1)
    for head in range(2):
        assert torch.equal(jacobian[head, :, head] > 0, Causal().matrix(5))


def test_pairs_that_a_bias_shuts_out_stay_out_and_leave_gradients_finite() -> None:
    """One head shuts out distances of 2 and more, the other of 4 and more; neither reads the query's own key."""
    span = AdaptiveSpan(2, 8, ramp=1.0, itself=False)
    span.span.data.copy_(torch.tensor([1.0, 3.0]) / 8)
    before, after = MixHeads(2, 3, bias=True), MixHeads(3, 2, bias=True)
    torch.nn.init.normal_(after.mix.bias)
    layer = Attention(QKV(16, 2), Explicit(Causal(), span, before=before, after=after), aggregation=Concat())
    x, pos = torch.randn(1, 8, 16, requires_grad=True), torch.arange(8)[None]
    y = layer(x, None, Context(pos)).y
    gradients = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (y[0, 0] == 0).all() and (y[0, 1:] != 0).all()
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x, None, Context(pos)).y[0, 7].sum(), x.detach())[0]
    logits = Explicit(Causal(), span, up=True)
    up = logits(*layer.projection(x, pos, x, pos), None, Context(pos)).up["scores"]
    open_to_some = (up.scores[0, :, 7] > -torch.inf).any(0)
    assert open_to_some[:7].tolist() == (jacobian.abs().sum(-1) > 0)[:7].tolist()
    assert 0 < open_to_some.sum() < 7 and not open_to_some[7]


def test_heads_that_do_not_divide_are_refused_in_words() -> None:
    layer = talking(Causal(), 4, 4, 3, key_heads=2)
    with pytest.raises(ValueError, match="3 heads of weights cannot share 2 value heads evenly"):
        layer(torch.randn(1, 3, 16), None, Context(torch.arange(3)[None]))


def test_a_pair_that_is_shut_out_changes_no_other_pair() -> None:
    mix, x = MixHeads(3, 4, bias=True), torch.randn(2, 3, 5, 6)
    torch.nn.init.normal_(mix.mix.bias)
    open_ = mix(x, None)
    x[:, :, 2, 3] = -torch.inf
    x[0, 1, 4, 4] = -torch.inf
    mixed = mix(x, None)
    assert bool((mixed[:, :, 2, 3] == -torch.inf).all())
    without = x[0, (0, 2), 4, 4] @ mix.mix.weight[:, (0, 2)].T + mix.mix.bias
    torch.testing.assert_close(mixed[0, :, 4, 4], without)
    same = torch.ones(2, 1, 5, 6, dtype=torch.bool)
    same[:, :, 2, 3] = same[0, :, 4, 4] = False
    torch.testing.assert_close(mixed.where(same, 0.0), open_.where(same, 0.0))


def test_what_stands_on_the_map_of_heads_is_asked() -> None:
    """A hook, a parametrization, a wrapper: each hangs on the call of a module."""
    layer, calls = Explicit(Causal(), before=MixHeads(2), after=MixHeads(2)), []
    for name, part in layer.named_modules():
        if name.endswith(".mix"):
            part.register_forward_hook(lambda part, inputs, out, name=name: calls.append(name))
    Attention(QKV(8, 2), layer)(torch.randn(1, 4, 8))
    assert calls == ["before.mix", "after.mix"]


def test_a_score_that_is_no_number_is_not_taken_for_one_that_is_shut_out() -> None:
    x = torch.randn(1, 2, 3, 4)
    x[0, 0, 1, 1], x[0, 1, 2, 2] = torch.nan, -torch.inf
    mixed = MixHeads(2)(x, None)
    assert mixed[0, :, 1, 1].isnan().all()
    assert int(mixed.isnan().sum()) == 2
