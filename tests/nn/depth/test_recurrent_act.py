"""RecurrentACT against Graves' equations, one number at a time."""

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.nn.depth.act import Halting
from kinformer.nn.depth.recurrent_act import RecurrentACT

D, STEPS, EPSILON = 5, 4, 0.05
POS = torch.tensor([[0, 1, 2, 3, -1], [-1, 0, 1, 2, 3]])


def build(lstm: bool = False) -> RecurrentACT:
    cell = torch.nn.LSTMCell(D + 1, D) if lstm else None
    layer = RecurrentACT(D, STEPS, Halting(D, epsilon=EPSILON, bias=-0.5), cell=cell).double()
    torch.nn.init.normal_(layer.halting.unit.weight, std=4.0 if lstm else 2.0)
    return layer


@pytest.mark.parametrize("lstm", [False, True])
@torch.no_grad()
def test_equals_the_equations(lstm: bool) -> None:
    """Also y^n: a linear head reads the mixed state as it would mix what it reads of each step's."""
    layer, x, head = build(lstm), 3 * torch.randn(2, 5, D).double(), torch.nn.Linear(D, 3).double()
    out = layer(x, layer.start(2, 5, dtype=x.dtype), Context(POS, run=True))
    step_counts = set()
    for b in range(2):
        s, c = torch.zeros(D).double(), torch.zeros(D).double()
        for t in range(5):
            if POS[b, t] < 0:
                continue
            states, cells, halts = [], [], []
            while not states or (sum(halts) < 1 - EPSILON and len(states) < STEPS):
                flag = torch.tensor([float(not states)]).double()
                z, before, c_before = torch.cat([x[b, t], flag])[None], *((states[-1], cells[-1]) if states else (s, c))
                if lstm:
                    new, cell = (tensor[0] for tensor in layer.cell(z, (before[None], c_before[None])))
                else:
                    new, cell = layer.cell(z, before[None])[0], c_before
                states, cells = [*states, new], [*cells, cell]
                halts.append(float(layer.halting.unit(new).sigmoid()))
            remainder = 1 - sum(halts[:-1])
            weights = [*halts[:-1], remainder]
            s, c = (sum(p * tensor for p, tensor in zip(weights, of, strict=True)) for of in (states, cells))
            step_counts.add(len(states))
            assert torch.allclose(out.y[b, t], s, atol=1e-13)
            assert torch.allclose(head(s), sum(p * head(tensor) for p, tensor in zip(weights, states, strict=True)))
            assert out.aux["steps"][b, t] == len(states)
            assert torch.allclose(out.aux["remainder"][b, t], torch.tensor(remainder).double(), atol=1e-13)
        assert torch.allclose(out.state.s[b], s, atol=1e-13)
        assert torch.allclose(out.state.c[b], c[: D if lstm else 0], atol=1e-13)
    assert len(step_counts) > 2, "tokens must stop at different steps for this to say anything"


def test_a_step_that_no_row_takes_is_not_computed() -> None:
    layer, x, calls = build(), torch.randn(2, 5, D).double(), []
    layer.cell.register_forward_hook(lambda *_: calls.append(1))
    steps = layer(x, None, Context(POS, run=True)).aux["steps"]
    assert len(calls) == int(steps.amax(0).sum()) < 5 * STEPS


@pytest.mark.parametrize(
    ("ctx", "says"),
    [
        (Context(POS), "run=True"),
        (Context(POS, True, only=Causal()), "ctx.only"),
        (Context(POS, True, also=Causal()), "ctx.also"),
    ],
)
def test_what_it_cannot_honour_is_refused(ctx: Context, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build()(torch.randn(2, 5, D).double(), None, ctx)


def test_no_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="steps=0: give a whole number of at least 1"):
        RecurrentACT(D, 0, Halting(D))
