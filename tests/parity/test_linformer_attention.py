"""Linformer against the linformer package: E and F shared by heads, keys of one head, keys that are values too."""

import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.patterns.full import Full
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.shorteners.linformer import Linformer
from tests.parity.goldens import Golden, close, goldens
from tests.parity.peers import copy_weights


@goldens("linformer_attention")
def test_linformer_attention(golden: Golden, float64: None) -> None:
    tensors, heads = golden.tensors, golden.hyperparameters["heads"]
    (batch, length, d), source = tensors["x"].shape, tensors.get("context")
    width = tensors["W_q"].shape[1] // heads
    key_heads = tensors["W_k"].shape[1] // width
    assert tensors["E"].shape[1] == golden.hyperparameters["k"]
    shorten = Linformer(*tensors["E"].shape, tied="F" not in tensors)
    projection = QKV(d, heads, key_heads=key_heads, head_dim=width, bias=any(f"b_{name}" in tensors for name in "qkv"))
    out = OutProjection(heads, width, d, bias="b_o" in tensors)
    layer = Attention(projection, Shortened(Softmax(Full()), shorten), aggregation=out, cross=source is not None)
    copy_weights(out.linear, tensors["W_o"].T, tensors.get("b_o"))
    with torch.no_grad():
        for name in "qkv":
            matrix_name = name if f"W_{name}" in tensors else "k"  # values are keys where they have no matrix
            weight, bias = projection.matrix(name)
            weight.copy_(tensors[f"W_{matrix_name}"].T)
            if bias is not None:
                bias.copy_(tensors.get(f"b_{matrix_name}", torch.zeros_like(bias)))
        shorten.along.k.copy_(tensors["E"])
        if shorten.along.v is not None:
            shorten.along.v.copy_(tensors["F"])
    known_names = {"x", "context", "E", "F", "y"} | {f"{kind}_{name}" for kind in "Wb" for name in "qkvo"}
    assert tensors.keys() <= known_names, f"not read: {sorted(tensors.keys() - known_names)}"
    close(layer(tensors["x"], None, context(length, batch, source)).y, tensors["y"])


def context(length: int, batch: int, source: Tensor | None) -> Context:
    pos = torch.arange(length).expand(batch, -1)
    if source is None:
        return Context(pos)
    return Context(pos, source=source, source_pos=torch.arange(source.shape[1]).expand(batch, -1))
