"""Reversible layers against reformer-pytorch: values, and gradients through its reconstructing backward."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.layer import Context, Layer, Out, State
from kinformer.nn.depth.reversible import Coupled, Reversible
from tests.parity.goldens import Golden, close, goldens

pytestmark = pytest.mark.usefixtures("float64")


class Tanh(Layer):
    """tanh(x W + b), the golden's F and G."""

    def __init__(self, weights: dict[str, Tensor], name: str):
        super().__init__()
        weight, bias = weights[f"W_{name}"], weights.get(f"b_{name}")
        self.d = len(weight)
        self.linear = nn.Linear(*weight.shape, bias=bias is not None)
        self.linear.weight.data.copy_(weight.T)
        if bias is not None:
            self.linear.bias.data.copy_(bias)

    def forward(self, x: Float[Tensor, "B T D"], state: State | None, ctx: Context) -> Out:
        return Out(self.linear(x).tanh(), state)


@goldens("reversible_residual")
def test_values_and_gradients(golden: Golden) -> None:
    tensors = golden.tensors
    depth = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("layers."))
    cut = [{k.split(".")[2]: v for k, v in tensors.items() if k.startswith(f"layers.{n}.")} for n in range(depth)]
    stack = Reversible([Coupled(Tanh(w, "F"), Tanh(w, "G"), norm=lambda d: nn.Identity()) for w in cut])
    x = tensors["x"].clone().requires_grad_()
    y = stack(x, None, Context(torch.arange(x.shape[1]).expand(len(x), -1))).y
    close(y, tensors["y"])
    y.backward(tensors["cotangent"])
    close(x.grad, tensors["grad_x"])
    for weights, block in zip(cut, stack.layers, strict=True):
        for name, layer in zip("FG", block.layers, strict=True):
            close(layer.linear.weight.grad.T, weights[f"grad_W_{name}"])
            if f"grad_b_{name}" in weights:
                close(layer.linear.bias.grad, weights[f"grad_b_{name}"])
