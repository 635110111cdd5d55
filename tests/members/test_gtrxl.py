"""GTrXL, the member: its equation pair by pair, what its keywords mean, and how it starts."""

import math
from typing import get_args

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.layer import Context
from kinformer.core.residual_block import ResidualBlock
from kinformer.members.gtrxl import gtrxl
from kinformer.members.support.gated_xl import GatedXL, GateName
from kinformer.nn.biases.transformer_xl import sinusoids
from kinformer.nn.blocks.gate import Gate
from tests.cuts import agree_however_cut

GATES = get_args(GateName)
SMALL = {"d": 16, "depth": 2, "heads": 2, "segment": 5, "memory": 4, "vocab": 11}


def attention_by_hand(
    block: ResidualBlock, x: Float[Tensor, "T D"], m: Float[Tensor, "M D"], heads: int
) -> Float[Tensor, "T D"]:
    """RelativeMultiHeadAttention(LayerNorm([M, E])) of one segment, query by query and key by key."""
    attention = block.layers[0]
    normed = F.layer_norm(
        torch.cat([m, x]), x.shape[-1:], attention.projection.norm.weight, attention.projection.norm.bias
    )
    bias, (w_q, w_k, w_v) = attention.mechanism.bias, (attention.projection.matrix(n)[0] for n in "qkv")
    width, out = len(w_q) // heads, []
    for i in range(len(m), len(normed)):
        outputs = []
        for h in range(heads):
            at = slice(h * width, (h + 1) * width)
            q = w_q[at] @ normed[i]
            scores = []
            for j in range(i + 1):
                far = bias.position.weight[at] @ sinusoids(torch.tensor([i - j]), x.shape[-1], x.dtype)[0]
                scores.append(((q + bias.u[h]) @ (w_k[at] @ normed[j]) + (q + bias.v[h]) @ far) / width**0.5)
            weights = torch.stack(scores).softmax(0)
            outputs.append(sum(weights[j] * (w_v[at] @ normed[j]) for j in range(i + 1)))
        out.append(attention.aggregation.linear.weight @ torch.cat(outputs))
    return torch.stack(out)


@pytest.mark.parametrize("gate", ["gru", "residual"])
def test_a_stack_equals_the_paper_s_equations(gate: GateName, float64: None) -> None:
    """Segment by segment, each layer's memory its own input of the segment before, as far back as it is kept.

    No gradient passes a memory, and the gain of its norm learns from it.
    """
    model = GatedXL(d=8, depth=2, heads=2, segment=3, memory=2, gate=gate)
    stack, x = model.stack().train(), torch.randn(1, 9, 8)
    for weight in stack.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    expected, memories = [], [x[0, :0]] * model.depth
    for e in x[0].split(model.segment):
        for n, block in enumerate(stack.layers):
            before, memories[n] = memories[n], torch.cat([memories[n], e])[-model.memory :]
            attended = attention_by_hand(block, e, before.detach(), model.heads).clamp_min(0)
            y = block.joins[0].gate(e[None], attended[None])[0]
            mlp = block.layers[1]
            hidden = mlp.up(F.layer_norm(y, (8,), block.norms[1].weight, block.norms[1].bias)).clamp_min(0)
            e = block.joins[1].gate(y[None], mlp.down(hidden).clamp_min(0)[None])[0]
        expected.append(e)
    ours = stack(x, None, Context.of_sequence(x)).y[0]
    torch.testing.assert_close(ours, torch.cat(expected), rtol=0, atol=1e-12)
    learned, weigh = list(stack.parameters()), torch.randn(9, 8)
    theirs = torch.autograd.grad((weigh * torch.cat(expected)).sum(), learned)
    for mine, other in zip(torch.autograd.grad((weigh * ours).sum(), learned), theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("gate", ["gru", "post_norm"])
def test_training_by_chunks_decoding_and_one_dense_call_agree(gate: GateName, float64: None) -> None:
    agree_however_cut(gtrxl(**SMALL, gate=gate))


def test_what_is_kept_is_not_normed(float64: None) -> None:
    """LayerNorm([SG(M), E]): after a change of the gain, what a memory says is normed by the new one."""
    stack = GatedXL(d=8, depth=1, heads=2, segment=3, memory=3).stack().train()
    x, state = torch.randn(2, 6, 8), stack.start(2, 6, dtype=torch.float64)
    remembered = stack(x[:, :3], state, Context(torch.arange(3).expand(2, 3), run=True)).state
    hidden = remembered[0][0]
    assert torch.equal(hidden.x[hidden.pos >= 0].view(2, 3, 8), x[:, :3])
    gain = stack.layers[0].layers[0].projection.norm.weight
    torch.nn.init.normal_(gain)
    later = torch.arange(3, 6).expand(2, 3)
    out = stack(x[:, 3:], remembered, Context(later, run=True)).y
    torch.testing.assert_close(out, stack(x, None, Context.of_sequence(x)).y[:, 3:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_has_the_join_of_its_name(gate: GateName) -> None:
    block = GatedXL(8, 1, 2, 3, 2, gate=gate).stack().layers[0]
    name = {"residual": "IdentityMap", "post_norm": "NormLast"}.get(gate, f"{gate}Gate")
    assert {type(join).__name__.lower() for join in block.joins} == {name.lower()}
    assert block.joins[0] is not block.joins[1]


@pytest.mark.parametrize("b_g", [0, 1.5])
def test_b_g_reaches_every_gate(b_g: float) -> None:
    starts = [join.b_g for join in gtrxl(**SMALL, b_g=b_g).modules() if isinstance(join, Gate)]
    assert len(starts) == 4 and all((start == b_g).all() for start in starts)


def test_hidden_and_head_dim_are_widths() -> None:
    block = gtrxl(**SMALL, hidden=7, head_dim=5).body.layers[0]
    assert block.layers[1].up.weight.shape == (7, 16)
    assert block.layers[0].projection.k_dim == 5


def test_dropout_stands_in_every_sublayer() -> None:
    model = gtrxl(**SMALL, dropout=0.3)
    assert {part.dropout for part in model.modules() if hasattr(part, "dropout")} == {0.3}


def test_a_bias_of_a_gate_that_has_none_is_refused() -> None:
    for gate in ("input", "residual", "post_norm"):
        with pytest.raises(ValueError, match=f"^b_g=1.0 has no effect with gate={gate}; .*gate=gru"):
            gtrxl(**SMALL, gate=gate, b_g=1.0)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"b_g": -1.0}, "b_g=-1.0: give a number from 0 up"),
        ({"depth": 0}, "depth=0: give a whole number of at least 1"),
        ({"heads": 3}, "d=16 is not a multiple of heads=3"),
        ({"hidden": 0}, "hidden=0: give a whole number of at least 1"),
        ({"dropout": 1.0}, "dropout=1.0: give a number from 0 to below 1"),
    ],
)
def test_what_means_nothing_is_refused(keywords: dict, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        gtrxl(**{**SMALL, **keywords})


@torch.no_grad()
@pytest.mark.parametrize("gate", ["gru", "sigtanh", "post_norm"])
def test_its_first_loss_is_that_of_knowing_nothing(gate: GateName) -> None:
    torch.manual_seed(0)
    nll = gtrxl(gate=gate).train()(torch.randint(0, 256, (2, 129))).parts["nll"]
    assert float(nll) == pytest.approx(math.log(256), rel=0.02)
