"""The gates of GTrXL, each against its equation number by number, and where each starts."""

import math
from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.layer import Out
from kinformer.nn.blocks.gate import BiasedGate, Gate
from kinformer.nn.blocks.gru_gate import GRUGate
from kinformer.nn.blocks.highway_gate import HighwayGate
from kinformer.nn.blocks.identity_map import IdentityMap
from kinformer.nn.blocks.input_gate import InputGate
from kinformer.nn.blocks.output_gate import OutputGate
from kinformer.nn.blocks.sigtanh_gate import SigTanhGate

D = 6
BIASED: list[type[BiasedGate]] = [GRUGate, OutputGate, HighwayGate, SigTanhGate]
GATES: list[Callable[[], Gate]] = [*(lambda kind=kind: kind(D) for kind in (*BIASED, InputGate)), IdentityMap]
Row = list[float]


def sigmoid(a: float) -> float:
    return 1 / (1 + math.exp(-a))


def times(matrix: Tensor, row: Row) -> Row:
    return [sum(m * n for m, n in zip(line, row, strict=True)) for line in matrix.tolist()]


def gru(gate: GRUGate, x: Row, y: Row) -> Row:
    (w_r, w_z, w_g), (u_r, u_z), b = gate.w.weight.split(D), gate.u.weight.split(D), gate.b_g.tolist()
    r = [sigmoid(m + n) for m, n in zip(times(w_r, y), times(u_r, x), strict=True)]
    z = [sigmoid(m + n - o) for m, n, o in zip(times(w_z, y), times(u_z, x), b, strict=True)]
    reset = times(gate.u_g.weight, [m * n for m, n in zip(r, x, strict=True)])
    h = [math.tanh(m + n) for m, n in zip(times(w_g, y), reset, strict=True)]
    return [(1 - z[i]) * x[i] + z[i] * h[i] for i in range(D)]


def input_(gate: InputGate, x: Row, y: Row) -> Row:
    a = times(gate.w_g.weight, x)
    return [sigmoid(a[i]) * x[i] + y[i] for i in range(D)]


def output(gate: OutputGate, x: Row, y: Row) -> Row:
    a, b = times(gate.w_g.weight, x), gate.b_g.tolist()
    return [x[i] + sigmoid(a[i] - b[i]) * y[i] for i in range(D)]


def highway(gate: HighwayGate, x: Row, y: Row) -> Row:
    a, b = times(gate.w_g.weight, x), gate.b_g.tolist()
    return [sigmoid(a[i] + b[i]) * x[i] + (1 - sigmoid(a[i] + b[i])) * y[i] for i in range(D)]


def sigtanh(gate: SigTanhGate, x: Row, y: Row) -> Row:
    (w_g, u_g), b = gate.w.weight.split(D), gate.b_g.tolist()
    a, gate_up = times(w_g, y), times(u_g, y)
    return [x[i] + sigmoid(a[i] - b[i]) * math.tanh(gate_up[i]) for i in range(D)]


def residual(gate: IdentityMap, x: Row, y: Row) -> Row:
    return [x[i] + y[i] for i in range(D)]


BY_HAND: dict[type[Gate], Callable[..., Row]] = {
    GRUGate: gru,
    InputGate: input_,
    OutputGate: output,
    HighwayGate: highway,
    SigTanhGate: sigtanh,
    IdentityMap: residual,
}


def random_gate(make: Callable[[], Gate]) -> Gate:
    """A gate whose parameters are all random, its biases each another number."""
    gate = make()
    for weight in gate.parameters():
        nn.init.normal_(weight)
    return gate


@pytest.mark.parametrize("make", GATES)
def test_equals_its_equation(make: Callable[[], Gate], float64: None) -> None:
    gate, x, norm = random_gate(make), torch.randn(2, 3, D), nn.LayerNorm(D)
    for weight in norm.parameters():
        nn.init.normal_(weight)
    linear = nn.Linear(D, D)
    ours = gate(x, lambda z: Out(linear(z)), norm).y
    y = linear(norm(x)).clamp_min(0)  # the norm on what goes in, the ReLU on what comes out
    rows = zip(x.flatten(0, 1).tolist(), y.flatten(0, 1).tolist(), strict=True)
    expected = torch.tensor([BY_HAND[type(gate)](gate, *row) for row in rows])
    torch.testing.assert_close(ours.flatten(0, 1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", GATES)
def test_gradients_are_those_of_the_equation(make: Callable[[], Gate], float64: None) -> None:
    gate, (x, y) = random_gate(make), torch.randn(2, 1, 2, D)
    names = [name for name, _ in gate.named_parameters()]

    def function(x: Tensor, y: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(
            _Sum(gate), dict(zip((f"g.{n}" for n in names), weights, strict=True)), (x, y)
        )

    inputs = (x, y, *(weight.detach().clone() for weight in gate.parameters()))
    assert torch.autograd.gradcheck(function, tuple(tensor.requires_grad_() for tensor in inputs))


class _Sum(nn.Module):
    """The gate alone, without norm and ReLU."""

    def __init__(self, g: Gate):
        super().__init__()
        self.g = g

    def forward(self, x: Float[Tensor, "B T D"], y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.g.gate(x, y)


@pytest.mark.parametrize(("kind", "matrices"), [(GRUGate, 6), (SigTanhGate, 2), (OutputGate, 1), (HighwayGate, 1)])
def test_it_has_as_many_matrices_as_its_equation(kind: type[BiasedGate], matrices: int) -> None:
    assert sum(weight.numel() for weight in kind(D).parameters()) == matrices * D * D + D
    assert sum(weight.numel() for weight in InputGate(D).parameters()) == D * D


def test_which_gates_have_a_bias() -> None:
    """The paper's input gate has none, and no other linear map of a gate has one."""
    biases = {
        type(gate): [n for n, p in gate.named_parameters() if p.dim() == 1] for gate in (make() for make in GATES)
    }
    assert biases == {**{kind: ["b_g"] for kind in BIASED}, InputGate: [], IdentityMap: []}


@pytest.mark.parametrize("kind", BIASED)
@pytest.mark.parametrize("b_g", [0, 2.0, 30.0])
def test_a_larger_bias_starts_nearer_to_the_identity(kind: type[BiasedGate], b_g: float) -> None:
    """With no weights the share that is not the stream's is sigmoid(-b_g): a half, 0.119, next to nothing."""
    gate, (x, y) = kind(D, b_g), torch.randn(2, 1, 4, D)
    assert gate.b_g.tolist() == [b_g] * D
    nn.init.zeros_((gate.u if kind is GRUGate else gate.w if kind is SigTanhGate else gate.w_g).weight)
    if kind is GRUGate:
        nn.init.zeros_(gate.w.weight)
        nn.init.zeros_(gate.u_g.weight)
    share = sigmoid(-b_g)
    expected = {
        GRUGate: (1 - share) * x,
        OutputGate: x + share * y,
        HighwayGate: (1 - share) * x + share * y,
        SigTanhGate: x,
    }[kind]
    torch.testing.assert_close(gate.gate(x, y), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", GATES)
def test_dropout_falls_on_what_a_sublayer_adds(make: Callable[[], Gate]) -> None:
    gate, x = make(), torch.randn(2, 3, D)
    gate.dropout = 1.0
    dropped = gate(x, Out, nn.Identity()).y
    torch.testing.assert_close(dropped, gate.gate(x, torch.zeros_like(x)))
    assert not torch.allclose(gate.eval()(x, Out, nn.Identity()).y, dropped)


@pytest.mark.parametrize("kind", BIASED)
@pytest.mark.parametrize("b_g", [-1.0, math.inf, math.nan, True])
def test_refuses_a_start_away_from_the_identity(kind: type[BiasedGate], b_g: object) -> None:
    with pytest.raises(ValueError, match="^b_g=.*: give a number from 0 up$"):
        kind(D, b_g)
