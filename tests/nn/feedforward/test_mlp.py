"""MLP and GatedMLP against their equations."""

import math
from collections.abc import Callable

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.nn.feedforward.mlp import MLP, GatedMLP, activate
from tests.unhooked import refusals, unhooked

CTX = Context(torch.arange(5).expand(2, 5))
FORMULAS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_named_nonlinearities(name: str, float64: None) -> None:
    x = torch.linspace(-4, 4, 41)
    assert torch.allclose(activate(x, name), torch.tensor([FORMULAS[name](p) for p in x.tolist()]), atol=1e-14)


@pytest.mark.parametrize("bias", [True, False])
def test_mlp_is_two_matrices_around_a_relu(bias: bool, float64: None) -> None:
    part, x = MLP(4, 6, activation="relu", bias=bias), torch.randn(2, 5, 4)
    b1, b2 = (part.up.bias, part.down.bias) if bias else (0, 0)
    expected = (x @ part.up.weight.T + b1).clamp_min(0) @ part.down.weight.T + b2
    assert torch.allclose(part(x, None, CTX).y, expected, atol=1e-14)
    assert (part.up.bias is not None) is (part.down.bias is not None) is bias


def test_gated_multiplies_by_a_gate(float64: None) -> None:
    part, x = GatedMLP(4, 6), torch.randn(2, 5, 4)
    gate = x @ part.gate.weight.T
    expected = (gate * gate.sigmoid() * (x @ part.up.weight.T)) @ part.down.weight.T
    assert torch.allclose(part(x, None, CTX).y, expected, atol=1e-14)


def test_usual_widths_cost_the_same() -> None:
    assert MLP(12).up.out_features == 48 and GatedMLP(12).up.out_features == 32
    sizes = [sum(p.numel() for p in part.parameters()) for part in (MLP(12, bias=False), GatedMLP(12))]
    assert sizes[0] == sizes[1]


def test_dropout_acts_in_training_alone_and_keeps_the_mean() -> None:
    part, x = MLP(4, 4, activation="relu", bias=False, dropout=0.25), torch.ones(1, 1, 4)
    with torch.no_grad():
        part.up.weight.copy_(torch.eye(4))
        part.down.weight.copy_(torch.eye(4))
    ctx = Context(torch.zeros(1, 1, dtype=torch.long))
    sampled = torch.stack([part(x, None, ctx).y for _ in range(500)])
    assert sampled.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert sampled.mean().item() == pytest.approx(1.0, abs=0.1)
    assert torch.equal(part.eval()(x, None, ctx).y, x)


@pytest.mark.parametrize("part", [MLP(4), GatedMLP(4)])
def test_has_no_state_and_hands_on_what_it_gets(part: MLP | GatedMLP) -> None:
    assert part.start(2, 5) == ()
    x = torch.randn(2, 5, 4)
    assert part(x, None, CTX).state is None and part(x, (), CTX).state == ()


def refusal_messages() -> list[str]:
    x = torch.zeros(1)
    return refusals(
        [
            lambda: activate(x, "tanh"),  # type: ignore[arg-type]
            lambda: MLP(4, activation="tanh"),  # type: ignore[arg-type]
            lambda: GatedMLP(4, activation="tanh"),  # type: ignore[arg-type]
            lambda: MLP(4, dropout=5.0),
            lambda: MLP(4, 0),
            lambda: GatedMLP(4, 0),
            lambda: MLP(0),
        ]
    )


def test_an_option_that_is_none_is_refused_also_without_checked_annotations() -> None:
    """A nonlinearity that is not there was silu once."""
    starts = ["activation='tanh' is not known; choose 'relu'"] * 3 + ["dropout=5.0", "hidden=0", "hidden=0", "d=0"]
    for text, start in zip(unhooked(f"{__name__}:{refusal_messages.__name__}"), starts, strict=True):
        assert text.startswith(f"ValueError: {start}")


def compiled() -> list[bool]:
    x, outputs = torch.randn(2, 5, 4), []
    for part in (MLP(4, activation="gelu_tanh"), GatedMLP(4)):
        whole = torch.compile(part, backend="aot_eager", fullgraph=True)
        outputs.append(torch.allclose(whole(x, None, CTX).y, part(x, None, CTX).y))
    return outputs


def test_one_graph() -> None:
    assert unhooked(f"{__name__}:{compiled.__name__}") == [True, True]
