"""Lending and Reused: a lazy block by loops, cut anywhere, in any order of columns, and what it refuses."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.layer import Context, PerPair
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.core.state import leaves
from kinformer.depth.stack import Stack
from kinformer.mechanisms.explicit import Explicit
from kinformer.mechanisms.lending import Lending
from kinformer.mechanisms.reused import Reused
from kinformer.patterns.band import Band
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full
from kinformer.projections.qkv import QKV
from kinformer.projections.values import Values

pytestmark = pytest.mark.usefixtures("float64")
POS = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3], [0, 1, 2, -1, -1, -1]])
READ = [Causal(), Causal() & Band(2), Full()]


def lazy(pattern: Pattern, dropout: float = 0.0) -> Stack:
    """Three blocks on the weights of the first; values of the second are of one head."""
    above = [Attention(Values(16, 4, value_heads=n), Reused(pattern, dropout=dropout)) for n in (1, 4)]
    return Stack([PreNorm(one) for one in (Attention(QKV(16, 4, key_heads=2), Lending(pattern)), *above)])


def naive(stack: Stack, x: Tensor, pos: Tensor, pattern: Pattern) -> Tensor:
    """Row by row: softmax over what a query may read in the first block, its weights in all."""
    heads, allowed = 4, pattern.matrix(10)
    weights = torch.zeros(len(x), heads, x.shape[1], x.shape[1])
    for n, block in enumerate(stack.layers):
        attention, z = block.layers[0], block.norms[0](x)
        queries, keys = attention.projection.both(z, pos)
        y = torch.zeros(len(x), x.shape[1], heads, 4)
        for b, h, i in ((b, h, i) for b in range(len(x)) for h in range(heads) for i in range(x.shape[1])):
            may = [j for j in range(x.shape[1]) if min(pos[b, i], pos[b, j]) >= 0 and allowed[pos[b, i], pos[b, j]]]
            if not n and may:
                scores = torch.stack([queries.q[b, h, i] @ keys.k[b, h // 2, j] / math.sqrt(4) for j in may])
                weights[b, h, i, may] = scores.softmax(0)
            for j in may:
                y[b, i, h] += weights[b, h, i, j] * keys.v[b, h * keys.v.shape[1] // heads, j]
        x = x + attention.aggregation.linear(y.flatten(2))
    return x


@pytest.mark.parametrize("pattern", READ, ids=repr)
def test_a_lazy_block_is_its_equation(pattern: Pattern) -> None:
    stack, x = lazy(pattern), torch.randn(3, 6, 16)
    for order in (torch.arange(6), torch.randperm(6)):
        found = stack(x[:, order], None, Context(POS[:, order])).y
        real, want = POS[:, order] >= 0, naive(stack, x[:, order], POS[:, order], pattern)
        torch.testing.assert_close(found[real], want[real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("pattern", READ[:2], ids=repr)
def test_it_decodes_and_keeps_values_alone(pattern: Pattern) -> None:
    stack, x, real = lazy(pattern), torch.randn(3, 6, 16), POS >= 0
    whole = stack(x, None, Context(POS, run=True)).y
    for cuts in ([1] * 6, [2, 1, 3]):
        state, parts = stack.start(3, 6), []
        for piece, pos in zip(x.split(cuts, 1), POS.split(cuts, 1), strict=True):
            out = stack(piece, state, Context(pos))
            state, parts = out.state, [*parts, out.y]
        torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real], rtol=0, atol=1e-12)
    assert [leaf.shape[-1] for name, leaf in leaves(state) if name == "k"] == [4, 0, 0]


def test_lazy_layers_own_no_queries_and_keys_and_make_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, seen = lazy(Causal()), []
    names = {name.split(".")[-2] for n in (1, 2) for name, _ in stack.layers[n].layers[0].named_parameters()}
    assert names == {"v", "linear"}
    made = torch.Tensor.softmax
    monkeypatch.setattr(torch.Tensor, "softmax", lambda x, *more: seen.append(x.shape) or made(x, *more))
    stack(torch.randn(2, 6, 16))
    assert seen == [(2, 4, 6, 6)]


def test_what_is_lent_is_dropped_in_training_alone_and_goes_up_whole() -> None:
    stack, x = lazy(Causal(), dropout=0.5), torch.randn(2, 6, 16)
    out = stack(x)
    assert not torch.equal(out.y, stack(x).y) and torch.equal(stack.eval()(x).y, stack(x).y)
    stack.train().layers[0].layers[0].mechanism.dropout = 0.5
    sent = stack(x).up["0.weights"].scores
    torch.testing.assert_close(sent.sum(-1), torch.ones(2, 4, 6))


def test_refusals() -> None:
    ctx = Context(POS)
    layer = Attention(Values(16, 2), Reused(Causal()))
    with pytest.raises(ValueError, match="Reused got no weights from below"):
        layer(torch.randn(3, 6, 16), None, ctx)
    sent = PerPair(torch.rand(3, 4, 6, 6), ctx.by_head, ctx.by_head)
    with pytest.raises(ValueError, match="the weights from below .* one pattern"):
        layer(torch.randn(3, 6, 16), None, ctx.but(below={"weights": sent}))
    with pytest.raises(NoState, match="reads up to"):
        lazy(Full()).start(1, 4)
    other = Stack([PreNorm(Attention(QKV(16, 2), Explicit(Causal(), up=True))), PreNorm(layer)])
    assert [want.name for want in other.wants] == ["0.weights"] and not other.wants[0].optional
