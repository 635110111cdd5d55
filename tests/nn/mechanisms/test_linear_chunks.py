"""Linear attention of long rows: chunks that are computed again, and the backward that is written out."""

from collections.abc import Callable

import pytest
import torch

from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.layer import Context
from kinformer.nn.maps.elu import ELU
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.random_fourier import RandomFourier
from kinformer.nn.mechanisms import linear, state_update
from kinformer.nn.mechanisms.delta_update import DeltaUpdate
from kinformer.nn.mechanisms.linear import GatedUpdate, LinearAttention
from kinformer.nn.mechanisms.linear_features import Quotient
from kinformer.nn.mechanisms.state_update import DecayedSum, UpdateWeights

pytestmark = pytest.mark.usefixtures("float64")

B, H, T, K, V = 2, 4, 37, 4, 3
MAKE: dict[str, Callable[[int], LinearAttention]] = {
    "elu": lambda groups: LinearAttention(ELU(), piece=4),
    "gated": lambda groups: LinearAttention(ELU(), GatedUpdate(), piece=4),
    "delta": lambda groups: LinearAttention(ELU(), DeltaUpdate(), piece=4),
    "favor": lambda groups: LinearAttention(FAVOR(K, 8), piece=4),
    "fourier": lambda groups: LinearAttention(RandomFourier(groups, K, 64), piece=4),
    "sequence": lambda groups: LinearAttention(FAVOR(K, 8, eps=1e-4, stabiliser="sequence"), piece=4),
}
every = pytest.mark.parametrize("name", MAKE)


def make_inputs(groups: int) -> dict[str, torch.Tensor]:
    sizes = {"q": (H, K), "k": (groups, K), "v": (groups, V), "gate": (groups, 1), "rate": (groups, 1)}
    return {name: torch.randn(B, heads, T, width, requires_grad=True) for name, (heads, width) in sizes.items()}


def results(name: str, x: dict[str, torch.Tensor], groups: int, state: bool) -> list[torch.Tensor]:
    """y, lse, the sums after the row, and gradients through all three; the second row is padded on the left."""
    mechanism = MAKE[name](groups)
    pos = torch.stack([torch.arange(T), torch.arange(T) - 5]).clamp_min(-1)
    ctx = Context(pos, run=True)
    sizes = HeadSizes(H, groups, groups, K, V)
    old = mechanism.start(StateSpec(B, T, torch.float64, pos.device), sizes) if state else None
    keys = Keys(x["k"], x["v"], ctx.by_head, {"gate": x["gate"], "rate": x["rate"]})
    out = mechanism(Queries(x["q"], ctx.by_head), keys, old, ctx)
    outputs = [out.y.y]
    if out.y.lse is not None:
        outputs.append(out.y.lse[:, :, 5:])
    if state:
        outputs.append(out.state.inside.s)
    total = sum((tensor.sin() * (1 + n)).sum() for n, tensor in enumerate(outputs))
    learned = [*x.values(), *mechanism.parameters()]
    gradients = torch.autograd.grad(total, learned, allow_unused=True)
    return [*outputs, *(tensor for tensor in gradients if tensor is not None)]


@every
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("groups", [4, 2])
def test_chunks_of_a_row_change_nothing(name: str, groups: int, state: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_inputs(groups)
    whole = results(name, x, groups, state)
    monkeypatch.setattr(linear, "NUMBERS", 1)
    monkeypatch.setattr(linear, "WHOLE", 1)
    counted = []
    chunks = LinearAttention._chunks
    monkeypatch.setattr(LinearAttention, "_chunks", lambda *inputs: counted.append(chunks(*inputs)) or counted[-1])
    pieces = results(name, x, groups, state)
    assert len(counted[0]) == (1 if name == "sequence" else 10)  # whose features depend on the whole row
    for ours, theirs in zip(pieces, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["elu", "favor", "fourier"])
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("groups", [4, 2])
def test_the_backward_that_is_written_out_is_that_of_its_operations(
    name: str, groups: int, state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, called = make_inputs(groups), []
    apply = state_update.DecayedSum.apply
    monkeypatch.setattr(state_update.DecayedSum, "apply", lambda *inputs: called.append(True) or apply(*inputs))
    written = results(name, x, groups, state)
    assert called
    monkeypatch.setattr(UpdateWeights, "needs_no_gradient", lambda self: False)
    for ours, theirs in zip(written, results(name, x, groups, state), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("begun", [True, False])
def test_weights_of_one_are_not_multiplied(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    n, p, heads = 3, 4, 2
    q, k, v = torch.randn(B, 2, n, heads, p, K), torch.randn(B, 2, n, p, K), torch.randn(B, 2, n, p, V)
    before, zeros, s = torch.ones(B, 2, n, p), torch.zeros(B, 2, n, p), torch.randn(B, 2, K, V) * begun
    before[:, :, 0] = float(begun)  # before any key there is nothing to weigh
    weights = UpdateWeights(zeros, zeros, before, torch.ones(B, 2, n, p))
    inputs = [x.requires_grad_() for x in (s, q, k, v)]

    def learned() -> list[torch.Tensor]:
        outputs = DecayedSum.apply(*inputs, *weights)
        return [*outputs, *torch.autograd.grad(sum(tensor.sin().sum() for tensor in outputs), inputs)]

    assert weights.is_uniform(s) and weights.is_uniform(torch.ones_like(s)) is begun
    for name in ("entering", "before"):
        other = getattr(weights, name).clone()
        other[0, 0, 1, 2] = 0.5
        assert not weights._replace(**{name: other}).is_uniform(s)
    ours = learned()
    monkeypatch.setattr(UpdateWeights, "is_uniform", lambda *_: False)
    for first, other in zip(ours, learned(), strict=True):
        torch.testing.assert_close(first, other, rtol=0, atol=1e-12)


def test_the_features_of_elu_learn_as_their_operations_do() -> None:
    x = (torch.randn(50, 4) * 3).requires_grad_()
    phi, most = ELU()(x[None, None], False)
    most = most[0, 0, :, None]
    expected = (x.clamp_max(0) - most).exp() + x.relu()
    torch.testing.assert_close(phi[0, 0], expected)
    ours, theirs = (torch.autograd.grad(features.sin().sum(), x)[0] for features in (phi, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_backward_under_autocast_is_exact() -> None:
    whole = T - T % 4  # a piece of one token is left to PyTorch
    x = {name: tensor[:, :, :whole].detach().float().requires_grad_() for name, tensor in make_inputs(2).items()}
    ctx = Context(torch.arange(whole).expand(B, -1), run=True)

    def learned(enabled: bool) -> tuple[torch.Tensor, ...]:
        y = MAKE["elu"](2)(Queries(x["q"], ctx.by_head), Keys(x["k"], x["v"], ctx.by_head), None, ctx).y.y
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            return torch.autograd.grad(y.square().sum(), [x["q"], x["k"], x["v"]])

    for ours, theirs in zip(learned(True), learned(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_quotient_learns_as_its_division_does_twice_too() -> None:
    y, divisor, direction = (
        torch.randn(5, 3, requires_grad=True),
        (torch.rand(5) + 1).requires_grad_(),
        torch.randn(5, 3),
    )
    results = []
    for quotient in (Quotient.apply(y, divisor), y / divisor[:, None]):
        first = torch.autograd.grad((quotient * direction).sin().sum(), (y, divisor), create_graph=True)
        results.append((quotient, *first, *torch.autograd.grad(sum(x.square().sum() for x in first), (y, divisor))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
