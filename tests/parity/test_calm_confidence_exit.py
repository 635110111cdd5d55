"""CALM's confidences and the layer each token leaves at, as a public reimplementation computes them.

Its meta classifier has two outputs; ours has one, with the difference of their weights. It leaves above the threshold
(`strict`), where the paper leaves at it.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.layer import Context, Layer, Out, State
from kinformer.nn.depth.early_exit import EarlyExit
from kinformer.nn.exits.confidence import Probe, SoftmaxResponse
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from tests.parity.goldens import Golden, close, goldens


class Replay(Layer):
    """A layer that gives what the golden says, whatever it reads."""

    def __init__(self, y: Tensor):
        super().__init__()
        self.d, self.y = y.shape[-1], y

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        return Out(self.y[None], state)


@goldens("calm_confidence_exit")
def test_confidences(golden: Golden) -> None:
    t = golden.tensors
    close(SoftmaxResponse(nn.Identity())([t["logits"]]), t["conf_softmax"])
    if "W_m" not in t:
        return
    probe = Probe(len(t["W_m"]), bias="b_m" in t).double()
    probe.unit.weight.data = (t["W_m"][:, 1] - t["W_m"][:, 0])[None]
    if "b_m" in t:
        probe.unit.bias.data = (t["b_m"][1] - t["b_m"][0])[None]
    close(probe([t["h"]]), t["conf_meta"])


@goldens("calm_confidence_exit")
def test_exits(golden: Golden) -> None:
    t = golden.tensors
    threshold = golden.hyperparameters["threshold"]
    layers, length, _ = t["logits"].shape
    rule = ConfidenceThreshold(SoftmaxResponse(nn.Identity()), threshold, strict=True)
    stack = EarlyExit([Replay(exit_logits) for exit_logits in t["logits"]], nn.Identity(), rule)
    ctx = Context(torch.arange(length)[None], run=True)
    out = stack.eval()(torch.zeros_like(t["logits"][:1]), None, ctx)
    assert torch.equal(out.aux["exit"][0].long() - 1, t["exit_layer"])
    assert torch.equal(out.y[0], t["logits"][t["exit_layer"], torch.arange(length)])
    assert torch.equal(stack.train()(torch.zeros_like(t["logits"][:1]), None, ctx).y[0], t["logits"][-1])
