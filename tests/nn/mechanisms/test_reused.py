"""Lending and Reused: a lazy block by loops, cut anywhere, in any order of columns, and what it refuses."""

import pytest
import torch
from torch import Tensor

from kinformer.core.layer import Context, PerPair
from kinformer.core.mechanism import NoState
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention
from kinformer.nn.biases.t5 import T5
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.reversible import Coupled, Reversible
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.lending import Lending
from kinformer.nn.mechanisms.reused import Reused
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.value_projection import ValueProjection

pytestmark = pytest.mark.usefixtures("float64")
POS = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3], [0, 1, 2, -1, -1, -1]])
READ = [Causal(), Causal() & Band(2), Full()]


def lazy(pattern: Pattern, dropout: float = 0.0, scale: float | None = None) -> Stack:
    """Three blocks on the weights of the first; values of the second are of one head."""
    above = [Attention(ValueProjection(16, 4, value_heads=n), Reused(pattern, dropout=dropout)) for n in (1, 4)]
    return Stack(
        [PreNorm(layer) for layer in (Attention(QKV(16, 4, key_heads=2), Lending(pattern, scale=scale)), *above)]
    )


def naive(stack: Stack, x: Tensor, pos: Tensor, pattern: Pattern, scale: float = 0.5) -> Tensor:
    """Row by row: softmax over what a query may read in the first block, its weights in all."""
    heads, allowed = 4, pattern.matrix(10)
    weights: dict[tuple[int, int, int], Tensor] = {}
    for n, block in enumerate(stack.layers):
        attention, z = block.layers[0], block.norms[0](x)
        queries, keys = attention.projection.queries_and_keys(z, pos)
        y = torch.zeros(len(x), x.shape[1], heads, 4)
        for b, h, i in ((b, h, i) for b in range(len(x)) for h in range(heads) for i in range(x.shape[1])):
            may = [j for j in range(x.shape[1]) if min(pos[b, i], pos[b, j]) >= 0 and allowed[pos[b, i], pos[b, j]]]
            if not n and may:
                scores = torch.stack([scale * queries.q[b, h, i] @ keys.k[b, h // 2, j] for j in may])
                weights[b, h, i] = scores.softmax(0)
            for n_j, j in enumerate(may):
                y[b, i, h] += weights[b, h, i][n_j] * keys.v[b, h * keys.v.shape[1] // heads, j]
        x = x + attention.aggregation.linear(y.flatten(2))
    return x


@pytest.mark.parametrize("pattern", READ, ids=repr)
def test_a_lazy_block_is_its_equation(pattern: Pattern) -> None:
    """Its gradients too: queries and keys learn from all layers that read by their weights."""
    stack, x = lazy(pattern), torch.randn(3, 6, 16, requires_grad=True)
    towards = torch.randn(3, 6, 16)
    for order in (torch.arange(6), torch.randperm(6)):
        output = stack(x[:, order], None, Context(POS[:, order])).y
        real, want = POS[:, order] >= 0, naive(stack, x[:, order], POS[:, order], pattern)
        torch.testing.assert_close(output[real], want[real], rtol=0, atol=1e-12)
        ours, theirs = (
            torch.autograd.grad((y * towards)[real].sum(), [x, *stack.parameters()]) for y in (output, want)
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_scale_of_its_own_serves_all_layers() -> None:
    stack, x = lazy(Causal(), scale=1.5), torch.randn(3, 6, 16)
    output, real = stack(x, None, Context(POS)).y, POS >= 0
    torch.testing.assert_close(output[real], naive(stack, x, POS, Causal(), 1.5)[real], rtol=0, atol=1e-12)


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


def test_lazy_layers_own_no_queries_and_keys_and_no_matrix_of_pairs_is_kept() -> None:
    stack, sizes = lazy(Causal()), []
    names = {name.split(".")[-2] for n in (1, 2) for name, _ in stack.layers[n].layers[0].named_parameters()}
    assert names == {"v", "linear"}
    above = [Attention(ValueProjection(16, 4), Reused(Causal())) for _ in range(2)]
    lender = Attention(QKV(16, 4), Lending(Causal(), lse=False))
    stack = Stack([PreNorm(layer) for layer in (lender, *above)])

    def keep(x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        stack(torch.randn(1, 256, 16))
    assert max(sizes) < 256 * 256


def test_what_is_lent_is_dropped_in_training_alone_and_goes_up_whole() -> None:
    stack, x = lazy(Causal(), dropout=0.5), torch.randn(2, 6, 16)
    out = stack(x)
    assert not torch.equal(out.y, stack(x).y) and torch.equal(stack.eval()(x).y, stack(x).y)
    stack.train().layers[0].layers[0].mechanism.dropout = 0.5
    sent, whole = stack(x).up["0.weights"], out.up["0.weights"]
    assert torch.equal(sent.q, whole.q) and torch.equal(sent.k, whole.k)
    step = stack(x[:, :1], stack.start(2, 6), Context(torch.zeros(2, 1, dtype=torch.long), run=True))
    assert torch.equal(step.up["0.weights"].scores, torch.ones(2, 4, 1, 1))


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("heads", [0, 2])
def test_weights_of_another_pattern_are_refused_in_every_form(length: int, heads: int) -> None:
    """A matrix of weights would be read under the lender's pattern, queries and keys under that of the reader."""

    def stack(pattern: Pattern) -> Stack:
        lender = Attention(QKV(16, 2), Lending(Causal() & Band(2), T5(heads) if heads else None))
        return Stack([PreNorm(lender), PreNorm(Attention(ValueProjection(16, 2), Reused(pattern)))])

    x = torch.randn(1, length, 16)
    stack(Causal() & Band(2))(x)
    with pytest.raises(ValueError, match="weights of .* expected Causal") as raised:
        stack(Causal())(x)
    assert "\n" not in str(raised.value)


def test_a_lazy_block_learns_in_reversible_layers_above_its_lender() -> None:
    """What goes up is rebuilt in the backward of these, the pattern beside its tensors."""
    lender = PreNorm(Attention(QKV(16, 2), Lending(Causal())))
    above = Reversible([Coupled(Attention(ValueProjection(8, 2), Reused(Causal())), MLP(8))])
    x = torch.randn(2, 6, 16, requires_grad=True)
    y = Stack([lender, above])(x).y
    (grad,) = torch.autograd.grad(y.sin().sum(), x)
    with torch.no_grad():
        step = 1e-6 * torch.randn_like(x)
        ends = [Stack([lender, above])(x + sign * step).y.sin().sum() for sign in (1, -1)]
    torch.testing.assert_close((grad * step).sum(), (ends[0] - ends[1]) / 2, rtol=1e-6, atol=0)


def test_refusals() -> None:
    ctx = Context(POS)
    layer = Attention(ValueProjection(16, 2), Reused(Causal()))
    with pytest.raises(ValueError, match="Reused got no weights from the blocks below"):
        layer(torch.randn(3, 6, 16), None, ctx)
    sent = PerPair(torch.rand(3, 4, 6, 6), ctx.by_head, ctx.by_head)
    with pytest.raises(ValueError, match="the weights from below .* the same pattern"):
        layer(torch.randn(3, 6, 16), None, ctx.replace(below={"weights": sent}))
    with pytest.raises(NoState, match="reads up to"):
        lazy(Full()).start(1, 4)
    other = Stack([PreNorm(Attention(QKV(16, 2), Explicit(Causal(), up=True))), PreNorm(layer)])
    assert [want.name for want in other.wants] == ["0.weights"] and not other.wants[0].optional
