"""RecurrentACT against Graves' equations, one number at a time."""

import pytest
import torch

from kinformer.core.layer import Context
from kinformer.depth.act import Halting
from kinformer.depth.recurrent_act import RecurrentACT
from kinformer.patterns.causal import Causal

D, STEPS, EPSILON = 5, 4, 0.05
POS = torch.tensor([[0, 1, 2, 3, -1], [-1, 0, 1, 2, 3]])


def build() -> RecurrentACT:
    layer = RecurrentACT(D, STEPS, Halting(D, epsilon=EPSILON, bias=-0.5)).double()
    torch.nn.init.normal_(layer.halting.unit.weight, std=2.0)
    return layer


def test_equals_the_equations() -> None:
    layer, x = build(), torch.randn(2, 5, D).double()
    with torch.no_grad():
        out = layer(x, layer.start(2, 5, dtype=x.dtype), Context(POS, run=True))
        seen = set()
        for b in range(2):
            s = torch.zeros(D).double()
            for t in range(5):
                if POS[b, t] < 0:
                    continue
                states, halts = [], []
                while not states or (sum(halts) < 1 - EPSILON and len(states) < STEPS):
                    flag = torch.tensor([float(not states)]).double()
                    before = states[-1] if states else s
                    states.append(layer.cell(torch.cat([x[b, t], flag])[None], before[None])[0])
                    halts.append(float(layer.halting.unit(states[-1]).sigmoid()))
                remainder = 1 - sum(halts[:-1])
                s = sum(p * one for p, one in zip([*halts[:-1], remainder], states, strict=True))
                seen.add(len(states))
                assert torch.allclose(out.y[b, t], s, atol=1e-13)
                assert out.aux["steps"][b, t] == len(states)
                assert torch.allclose(out.aux["remainder"][b, t], torch.tensor(remainder).double(), atol=1e-13)
            assert torch.allclose(out.state.s[b], s, atol=1e-13)
    assert len(seen) > 2, "tokens must stop at different steps for this to say anything"


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
