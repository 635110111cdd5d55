"""Evolving attention against the authors' time-series code: a layer above given scores; y as they reshape it."""

import torch
from torch import Tensor

from kinformer.core.layer import Context, PerPair
from kinformer.core.patterns.full import Full
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.evolving import EvolvingAttention
from kinformer.nn.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens


@goldens("predictive_attention_evolving")
def test_evolving_attention(golden: Golden, float64: None) -> None:
    tensors = golden.tensors
    assert tensors.keys() <= {
        "x",
        "prev_scores",
        "W_q",
        "W_k",
        "W_v",
        "b_q",
        "b_k",
        "b_v",
        "W_conv",
        "b_conv",
        "scores",
        "y_raw",
    }
    layer, pos = make_layer(golden), torch.arange(tensors["x"].shape[1]).expand(tensors["x"].shape[:2])
    below = tensors.get("prev_scores")
    for run in (True, False):  # by columns, and by positions
        ctx = Context(pos, run=run)
        if below is not None:
            ctx = ctx.replace(below={"scores": PerPair(below, ctx.by_head, ctx.by_head)})
        out = layer(tensors["x"], None, ctx)
        close(out.up["scores"].scores, tensors["scores"])
        if "y_raw" in tensors:
            y = out.y.unflatten(2, (layer.sizes.heads, -1)).transpose(1, 2)  # [B H L d_h], which they call [B d L]
            close(y.reshape(tensors["y_raw"].shape), tensors["y_raw"])


def make_layer(golden: Golden) -> Attention:
    """The layer of a golden. Their alpha weighs the convolution, their beta the scores from beneath."""
    sizes, tensors = golden.hyperparameters, golden.tensors
    heads = sizes["heads"]
    head_dim, v_dim = (tensors[name].shape[1] // heads for name in ("W_q", "W_v"))
    mechanism = EvolvingAttention(
        Full(), heads, alpha=sizes["beta"], beta=sizes["alpha"], size=tensors["W_conv"].shape[-1]
    )
    projection = QKV(sizes["d"], heads, head_dim=head_dim, v_dim=v_dim)
    for name in "qkv":
        fill(*projection.matrix(name), tensors[f"W_{name}"].T, tensors.get(f"b_{name}"))
    conv = mechanism.convolution.conv
    fill(conv.weight, conv.bias, tensors["W_conv"], tensors.get("b_conv"))
    return Attention(projection, mechanism, aggregation=Concat())


def fill(weight: Tensor, bias: Tensor, target: Tensor, wanted_bias: Tensor | None) -> None:
    """An absent bias is none."""
    weight.data.copy_(target)
    bias.data.copy_(torch.zeros_like(bias) if wanted_bias is None else wanted_bias)
