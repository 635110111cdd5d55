"""Halting in the Universal Transformer as a port of Tensor2Tensor computes it.

It differs from Graves by keywords: the answer is `interpolate_answer`, the last possible step weighs its `probability`,
epsilon is 0.1, a sum must exceed 1 - epsilon (`strict`); and from the paper's text in that halted states are `updated`.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.layer import Context, Layer, Out, State
from kinformer.nn.depth.act import ACT, Halting, interpolate_answer
from kinformer.nn.depth.universal import Universal
from kinformer.nn.positions.timing import Timing
from tests.parity.goldens import Golden, close, goldens

EPSILON = 0.1


class Transition(Layer):
    """The golden's own toy step, tanh(s W)."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.d, self.weight, self.bias = len(weight), weight, bias

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        s = x @ self.weight
        return Out(torch.tanh(s if self.bias is None else s + self.bias), state)


class Given(nn.Module):
    """The timing signal as the golden holds it."""

    def __init__(self, pos: Tensor, step: Tensor):
        super().__init__()
        self.pos, self.step = pos, step

    def forward(self, pos: Tensor, step: int) -> Tensor:
        return self.pos[pos] + self.step[step]


def build(golden: Golden) -> ACT:
    """The layer with the golden's weights; absent biases and an absent timing are none."""
    t, sizes = golden.tensors, golden.hyperparameters
    timing = Given(t["pos"], t["step"]) if "pos" in t else None
    universal = Universal(Transition(t["W"], t.get("b")), sizes["max_hop"], timing)
    epsilon = 1 - sizes["threshold"] if "threshold" in sizes else sizes.get("epsilon", EPSILON)
    bias = t["b_h"].item() if "b_h" in t else sizes.get("b_h")
    halting = Halting(len(t["W_h"]), epsilon=epsilon, bias=bias, last="probability", strict=True).double()
    halting.unit.weight.data = t["W_h"].reshape(1, -1)
    if "b_h" in t:
        halting.unit.bias.data = t["b_h"].reshape(1)
    return ACT(universal, halting, mix=interpolate_answer, halted="updated", judged="input")


@goldens("act_halting_universal_transformer")
def test_equals_the_port(golden: Golden) -> None:
    t = golden.tensors
    rows, length, _ = t["x"].shape
    ctx = Context(torch.arange(length).expand(rows, -1), run=True)
    for training in (False, True):  # stopping early, and not
        out = build(golden).train(training)(t["x"], None, ctx)
        close(out.y, t["state"])
        close(out.aux["remainder"], t["remainders"])
        close(out.aux["steps"], t["n_updates"])
        close(out.aux["ponder"], t["n_updates"] + t["remainders"])


@goldens("act_halting_universal_transformer")
def test_its_timing_is_ours(golden: Golden) -> None:
    t = golden.tensors
    if "pos" not in t:
        return
    length, d = t["pos"].shape
    timing = Timing(d, layout="concat").double()
    for n, step in enumerate(t["step"]):
        close(timing(torch.arange(length)[None], n)[0], t["pos"] + step)
