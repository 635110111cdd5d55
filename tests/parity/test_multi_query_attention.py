"""One key head for all query heads, against Hugging Face GPTBigCode."""

import torch
from torch import Tensor, nn

from kinformer.attention import Attention
from kinformer.core.layer import Context
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.causal import Causal
from tests.parity.goldens import Golden, close, goldens


@goldens("multi_query_attention")
def test_multi_query_attention(golden: Golden) -> None:
    tensors = golden.tensors
    (batch, length, d), heads = tensors["x"].shape, golden.hyperparameters["heads"]
    head_dim = tensors["W_q"].shape[1] // heads
    layer = Attention(
        d,
        heads,
        Softmax(Causal()),
        key_heads=tensors["W_k"].shape[1] // head_dim,
        head_dim=head_dim,
    ).double()
    assert layer.projection.key_heads == golden.hyperparameters.get("key_heads", 1)
    places = {"q": layer.projection.q, "k": layer.projection.k, "v": layer.projection.v, "o": layer.aggregation.out}
    for name, linear in places.items():
        fill(linear, tensors[f"W_{name}"], tensors.get(f"b_{name}"))
    pos = torch.arange(length).expand(batch, length)
    close(layer(tensors["x"], None, Context(pos, run=True)).y, tensors["y"])


@torch.no_grad()
def fill(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    """y = x @ weight + bias; no bias is a bias of 0."""
    linear.weight.copy_(weight.T)
    linear.bias.copy_(torch.zeros_like(linear.bias) if bias is None else bias)
