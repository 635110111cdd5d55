"""One key head for all query heads, against Hugging Face GPTBigCode."""

import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens


@goldens("multi_query_attention")
def test_multi_query_attention(golden: Golden) -> None:
    tensors = golden.tensors
    (batch, length, d), heads = tensors["x"].shape, golden.hyperparameters["heads"]
    head_dim = tensors["W_q"].shape[1] // heads
    key_heads = tensors["W_k"].shape[1] // head_dim
    layer = Attention(QKV(d, heads, key_heads=key_heads, head_dim=head_dim), Softmax(Causal())).double()
    assert layer.projection.key_heads == golden.hyperparameters.get("key_heads", 1)
    for name in ("q", "k", "v"):
        fill(layer.projection.matrix(name), tensors[f"W_{name}"], tensors.get(f"b_{name}"))
    out = layer.aggregation.linear
    fill((out.weight, out.bias), tensors["W_o"], tensors.get("b_o"))
    close(layer(tensors["x"]).y, tensors["y"])
    pos = torch.arange(length).expand(batch, length)
    close(layer(tensors["x"], None, Context(pos)).y, tensors["y"])


@torch.no_grad()
def fill(matrix: tuple[Tensor, Tensor], weight: Tensor, bias: Tensor | None) -> None:
    """y = x @ weight + bias; no bias is a bias of 0. A part of a fused matrix is written in place."""
    matrix[0].copy_(weight.T)
    matrix[1].copy_(torch.zeros_like(matrix[1]) if bias is None else bias)
