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
from tests.parity.peers import put


@goldens("linformer_attention")
def test_linformer_attention(golden: Golden, float64: None) -> None:
    given, heads = golden.tensors, golden.hyperparameters["heads"]
    (batch, length, d), source = given["x"].shape, given.get("context")
    width = given["W_q"].shape[1] // heads
    key_heads = given["W_k"].shape[1] // width
    assert given["E"].shape[1] == golden.hyperparameters["k"]
    shorten = Linformer(*given["E"].shape, tied="F" not in given)
    projection = QKV(d, heads, key_heads=key_heads, head_dim=width, bias=any(f"b_{name}" in given for name in "qkv"))
    out = OutProjection(heads, width, d, bias="b_o" in given)
    layer = Attention(projection, Shortened(Softmax(Full()), shorten), aggregation=out, cross=source is not None)
    put(out.linear, given["W_o"].T, given.get("b_o"))
    with torch.no_grad():
        for name in "qkv":
            whose = name if f"W_{name}" in given else "k"  # values are keys where they have no matrix
            weight, bias = projection.matrix(name)
            weight.copy_(given[f"W_{whose}"].T)
            if bias is not None:
                bias.copy_(given.get(f"b_{whose}", torch.zeros_like(bias)))
        shorten.along.k.copy_(given["E"])
        if shorten.along.v is not None:
            shorten.along.v.copy_(given["F"])
    known = {"x", "context", "E", "F", "y"} | {f"{kind}_{name}" for kind in "Wb" for name in "qkvo"}
    assert given.keys() <= known, f"not read: {sorted(given.keys() - known)}"
    close(layer(given["x"], None, context(length, batch, source)).y, given["y"])


def context(length: int, batch: int, source: Tensor | None) -> Context:
    pos = torch.arange(length).expand(batch, -1)
    if source is None:
        return Context(pos)
    return Context(pos, source=source, source_pos=torch.arange(source.shape[1]).expand(batch, -1))
