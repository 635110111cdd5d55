"""AverageAttention: its equations by a loop, attention that compares nothing, padding, its state, what it refuses."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kinformer.attend import attend
from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.core.state import leaves
from kinformer.nn.attention import Attention
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mixers.average_attention import AverageAttention
from kinformer.nn.projections.qkv import QKV

D = 6
FORMS = [(True, True), (True, False), (False, True), (False, False)]


def make_layer(feedforward: bool, gate: bool) -> AverageAttention:
    return AverageAttention(D, MLP(D, 9, activation="relu") if feedforward else None, gate=gate)


def by_hand(layer: AverageAttention, y: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
    """Equations 1 and 2 of the paper, token by token; h~ before the residual and the norm."""
    outputs = []
    for j in range(len(y)):
        g = torch.zeros(D)
        for k in range(j + 1):
            g = g + y[k] / (j + 1)
        if isinstance(layer.feedforward, MLP):
            up, down = layer.feedforward.up, layer.feedforward.down
            g = down.weight @ (up.weight @ g + up.bias).clamp_min(0) + down.bias
        if layer.gate is not None:
            gates = 1 / (1 + (-(layer.gate.weight @ torch.cat([y[j], g]) + layer.gate.bias)).exp())
            g = gates[:D] * y[j] + gates[D:] * g
        outputs.append(g)
    return torch.stack(outputs)


@pytest.mark.parametrize(("feedforward", "gate"), FORMS)
def test_it_is_the_papers_equations_beside_any_padding(float64: None, feedforward: bool, gate: bool) -> None:
    layer, rows = make_layer(feedforward, gate), [torch.randn(7, D), torch.randn(4, D), torch.randn(5, D)]
    x, mask = torch.full((3, 7, D), 1e3), torch.zeros(3, 7, dtype=torch.bool)
    for n, (row, left) in enumerate(zip(rows, (0, 3, 1), strict=True)):
        x[n, left : left + len(row)], mask[n, left : left + len(row)] = row, True
    actual = layer(x, None, Context.of_sequence(x, mask)).y
    for n, row in enumerate(rows):
        torch.testing.assert_close(actual[n][mask[n]], by_hand(layer, row), rtol=0, atol=1e-12)


def test_a_mean_is_attention_with_no_score(float64: None) -> None:
    layer, x = make_layer(False, False), torch.randn(2, 9, D)
    nothing, v = torch.zeros(2, 1, 9, 2), x[:, None]
    torch.testing.assert_close(layer(x).y, attend(nothing, nothing, v, pattern=Causal()).y[:, 0], rtol=0, atol=1e-12)


def test_its_state_is_a_sum_and_a_count_however_long_the_row() -> None:
    layer = make_layer(True, True)
    states = [layer.start(2, length, dtype=torch.bfloat16) for length in (1, 10**6)]
    for state in states:
        state_leaves = dict(leaves(state))
        assert {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in state_leaves.items()} == {
            "total": ((2, D), torch.float32),
            "tokens": ((2,), torch.int64),
        }
    x = torch.randn(2, 5, D)
    after = layer(x, states[0], Context.of_sequence(x)).state
    assert {name: leaf.dtype for name, leaf in leaves(after)} == {"total": torch.float32, "tokens": torch.int64}


def test_low_precision_adds_up_in_float32() -> None:
    """In bfloat16 a sum of ones would stay at 256."""
    layer, x = AverageAttention(D, gate=False).bfloat16(), torch.ones(1, 4000, D, dtype=torch.bfloat16)
    assert torch.equal(layer(x).y, x)
    state = layer.start(1, 1, dtype=torch.bfloat16)
    for n in range(2):
        out = layer(x, state, Context(torch.arange(n * 4000, (n + 1) * 4000)[None], True))
        state = out.state
    assert torch.equal(out.y, x) and dict(leaves(state))["total"].unique().tolist() == [8000]


class Widest(TorchDispatchMode):
    """The most numbers that any tensor of a computation has."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            self.most = max(self.most, tensor.numel() if isinstance(tensor, Tensor) else 0)
        return out


def test_no_matrix_of_pairs_is_made_forward_or_backward() -> None:
    def most(length: int) -> int:
        with Widest() as widest:
            make_layer(True, True)(torch.randn(1, length, D, requires_grad=True)).y.sum().backward()
        return widest.most

    assert most(512) == 2 * most(256) < 256 * 256


def test_what_it_cannot_do_is_refused() -> None:
    layer, x = make_layer(True, True), torch.randn(1, 4, D)
    pos = torch.arange(4)[None]
    with pytest.raises(ValueError, match="needs the tokens in the order of their positions"):
        layer(x, None, Context(pos))
    for limits in ({"only": Causal()}, {"also": Full()}):
        with pytest.raises(
            ValueError, match=r"does not support ctx.only or ctx.also: it averages all tokens so far\. Use Attention"
        ):
            layer(x, None, Context(pos, True, **limits))
    with pytest.raises(ValueError, match="Attention has a state, so it reads tokens together and cannot read means"):
        AverageAttention(D, Attention(QKV(D, 2), Softmax(Causal())))
    with pytest.raises(ValueError, match="d=6 must equal the width of the feedforward: got 8"):
        AverageAttention(D, MLP(8))
