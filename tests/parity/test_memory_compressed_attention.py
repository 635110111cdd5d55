"""Memory-compressed attention against the memory-compressed-attention package.

Where it differs from the paper: its scale is of the whole width, keys and values share a convolution, groups are
counted from the last token, and a null key stands before them.
"""

from typing import Any

import torch

from kinformer.core.layer import Context
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.null_key import NullKey
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.shorteners.conv_shortener import ConvShortener
from tests.parity.goldens import Golden, close, goldens
from tests.parity.peers import copy_weights, put_qkv


@goldens("memory_compressed_attention")
def test_memory_compressed_attention(golden: Golden, float64: None) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    (batch, length, d), heads, ratio = tensors["x"].shape, sizes["heads"], sizes["ratio"]
    width = tensors["W_q"].shape[1] // heads
    null = NullKey(heads, width) if "null_k" in tensors else None
    shorten = ConvShortener(ratio, width, heads=heads, tied=True, bias="b_c" in tensors, align="last")
    pattern = Causal() if sizes.get("causal", True) else Full()
    projection = QKV(d, heads, head_dim=width, bias=any(f"b_{name}" in tensors for name in "qkv"))
    out = OutProjection(heads, width, d, bias="b_o" in tensors)
    layer = Attention(projection, Shortened(Softmax(pattern, scale=d**-0.5), shorten, null), aggregation=out)
    for name in "qkv":
        bias = tensors.get(f"b_{name}", torch.zeros(heads * width)) if projection.bias else None
        put_qkv(projection, name, tensors[f"W_{name}"].T, bias)
    copy_weights(out.linear, tensors["W_o"].T, tensors.get("b_o"))
    fill(shorten, null, tensors)
    known_names = {"x", "W_c", "b_c", "null_k", "null_v", "y"} | {f"{kind}_{name}" for kind in "Wb" for name in "qkvo"}
    assert tensors.keys() <= known_names, f"not read: {sorted(tensors.keys() - known_names)}"
    close(layer(tensors["x"]).y, tensors["y"])
    close(layer(tensors["x"], None, Context(torch.arange(length).expand(batch, -1))).y, tensors["y"])


@torch.no_grad()
def fill(shorten: ConvShortener, null: NullKey | None, tensors: dict[str, Any]) -> None:
    """Kernels are stored as torch.nn.Conv1d has them: [heads * out, in, place]."""
    heads, size, width, _ = shorten.weight.k.shape
    shorten.weight.k.copy_(tensors["W_c"].view(heads, width, width, size).permute(0, 3, 2, 1))
    if shorten.bias is not None:
        shorten.bias.k.copy_(tensors["b_c"].view(heads, width))
    if null is not None:
        null.k.copy_(tensors["null_k"].view(heads, width))
        null.v.copy_(tensors["null_v"].view(heads, width))
