"""Chunked feed-forward: the same values and gradients, fewer hidden values at a time."""

import pytest
import torch
from torch import Tensor

from kinformer.attention import Attention
from kinformer.core.layer import Context
from kinformer.feedforward.chunked import Chunked
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.causal import Causal

CTX = Context(torch.arange(11).expand(2, 11), True)


@pytest.mark.parametrize("size", [1, 4, 11, 100])
def test_it_is_the_layer(float64: None, size: int) -> None:
    mlp, x = MLP(8), torch.randn(2, 11, 8, requires_grad=True)
    outs = [layer(x, None, CTX).y for layer in (mlp, Chunked(mlp, size))]
    assert torch.allclose(*outs, atol=1e-14)
    inputs = [x, *mlp.parameters()]
    for one, other in zip(*(torch.autograd.grad(y.sin().sum(), inputs) for y in outs), strict=True):
        assert torch.allclose(one, other, atol=1e-13)


def test_no_hidden_value_is_kept_for_the_backward() -> None:
    def kept(layer: torch.nn.Module) -> set[int]:
        widths: set[int] = set()

        def pack(tensor: Tensor) -> Tensor:
            if tensor.shape[-1] == 32 and tensor.dim() == 3:
                widths.add(tensor.shape[1])
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(torch.randn(2, 11, 8, requires_grad=True), None, CTX)
        return widths

    mlp = MLP(8)
    assert kept(mlp) == {11} and kept(Chunked(mlp, 4)) == set()


def test_dropout_is_the_same_in_the_backward(float64: None) -> None:
    layer = Chunked(MLP(8, dropout=0.5, activation="relu"), 3).train()
    x = torch.randn(2, 11, 8, requires_grad=True)
    torch.manual_seed(2)
    first = layer(x, None, CTX).y
    (grad,) = torch.autograd.grad(first.sum(), x)
    step = 1e-7 * torch.randn_like(x)
    torch.manual_seed(2)
    assert torch.allclose(layer(x + step, None, CTX).y.sum() - first.sum(), (grad * step).sum(), rtol=1e-4)


def test_what_reads_tokens_together_is_refused() -> None:
    with pytest.raises(ValueError, match="Attention has a state.*give an MLP"):
        Chunked(Attention(8, 2, Softmax(Causal())), 4)
    with pytest.raises(ValueError, match="size=0"):
        Chunked(MLP(8), 0)
