"""ParallelSublayers: the sum of outputs for one input, by loops; its names, its state, and what it refuses."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.parallel_sublayers import ParallelSublayers
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV
from tests.nn.blocks.test_blocks import Teller, Unasked

D, HEADS, WIDTH = 8, 2, 4


def block() -> PreNorm:
    attention = Attention(QKV(D, HEADS), Softmax(Causal()))
    layer = PreNorm(ParallelSublayers(attention, MLP(D, activation="relu"), norm=LayerNorm), norm=nn.Identity)
    for weight in layer.parameters():
        nn.init.normal_(weight)
    return layer


def normed(x: Float[Tensor, "D"], norm: nn.LayerNorm) -> Float[Tensor, "D"]:
    centred = x - x.mean()
    return centred / (centred.pow(2).mean() + norm.eps).sqrt() * norm.weight + norm.bias


def by_loops(layer: PreNorm, x: Float[Tensor, "T D"], *, in_turn: bool = False) -> Float[Tensor, "T D"]:
    """x + Attn(LN1(x)) + MLP(LN2(x)) token by token; `in_turn` lets the second read what the first has added."""
    attention, mlp = layer.layers[0].layers
    first, second = layer.layers[0].norms
    rows = []
    for i in range(len(x)):
        heads = []
        for h in range(HEADS):
            q, k, v = (
                torch.stack([weight @ normed(row, first) + bias for row in x])[:, h * WIDTH : (h + 1) * WIDTH]
                for weight, bias in map(attention.projection.matrix, "qkv")
            )
            weights = torch.stack([q[i] @ k[j] / WIDTH**0.5 for j in range(i + 1)]).softmax(0)
            heads.append(sum(weights[j] * v[j] for j in range(i + 1)))
        linear = attention.aggregation.linear
        attended = linear.weight @ torch.cat(heads) + linear.bias
        z = normed(x[i] + attended if in_turn else x[i], second)
        rows.append(x[i] + attended + mlp.down.weight @ (mlp.up.weight @ z + mlp.up.bias).relu() + mlp.down.bias)
    return torch.stack(rows)


def test_equals_loops(float64: None) -> None:
    layer, x = block(), torch.randn(2, 5, D)
    expected = torch.stack([by_loops(layer, row) for row in x])
    torch.testing.assert_close(layer(x).y, expected, rtol=0, atol=1e-11)


def test_the_loops_tell_it_from_sublayers_in_turn(float64: None) -> None:
    layer, x = block(), torch.randn(5, D)
    in_turn, own = PreNorm(*layer.layers[0].layers), by_loops(layer, x, in_turn=True)
    in_turn.norms = layer.layers[0].norms
    torch.testing.assert_close(in_turn(x[None]).y[0], own, rtol=0, atol=1e-11)
    assert (by_loops(layer, x) - own).abs().max() > 1e-2


def test_one_norm_for_all_is_the_block_s(float64: None) -> None:
    attention, mlp, x = Attention(QKV(D, HEADS), Softmax(Causal())), MLP(D), torch.randn(2, 5, D)
    layer = PreNorm(ParallelSublayers(attention, mlp))
    z = layer.norms[0](x)
    assert torch.equal(layer(x).y, x + (attention(z).y + mlp(z).y))


def test_states_and_reports_carry_the_place_of_their_sublayer() -> None:
    first, second, x = Teller(D), Teller(D), torch.randn(2, 5, D)
    layer = ParallelSublayers(first, MLP(D), second)
    out = layer(x, layer.start(2, 5), Context.of_sequence(x))
    assert [set(m) for m in (out.aux, out.up, out.stats)] == [
        {f"{n}.{name}" for n in (0, 2)} for name in ("told", "sent", "counted")
    ]
    assert out.state[0].tolist() == [[5.0], [5.0]] and out.state[1] == () and layer(x).state is None


def test_remembering_leaves_the_state_that_reading_does(float64: None) -> None:
    """Of sublayers without a state nothing is computed, wherever they stand."""
    attention, x = Attention(QKV(D, HEADS), Softmax(Causal())), torch.randn(2, 5, D)
    layer, ctx = ParallelSublayers(MLP(D), attention, norm=LayerNorm), Context.of_sequence(torch.empty(2, 5))
    read = layer(x, layer.start(2, 5, dtype=x.dtype), ctx).state
    layer.layers[0] = Unasked(D)
    state = layer(x, layer.start(2, 5, dtype=x.dtype), ctx.replace(remember=True)).state
    assert state[0] == ()
    for (_, ours), (_, theirs) in zip(leaves(state[1]), leaves(read[1]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("layers", "widths"), [((), r"widths \[\]"), ((MLP(8), MLP(12)), r"widths \[8, 12\]")])
def test_refuses_other_widths_and_no_sublayers(layers: tuple[MLP, ...], widths: str) -> None:
    with pytest.raises(ValueError, match=widths):
        ParallelSublayers(*layers)
