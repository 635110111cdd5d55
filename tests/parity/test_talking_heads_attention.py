"""Talking heads against timm's TalkingHeadAttn: biases of the mixes, as many heads between as before and after."""

import torch
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.talking_heads import MixHeads
from kinformer.nn.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens


@goldens("talking_heads_attention")
def test_talking_heads(golden: Golden, float64: None) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    x, heads = tensors["x"], sizes["heads"]
    before = MixHeads(heads, tensors["P_l"].shape[1], bias="b_l" in tensors)
    after = MixHeads(tensors["P_w"].shape[0], tensors["P_w"].shape[1], bias="b_w" in tensors)
    layer = Attention(QKV(sizes["d"], heads), Explicit(Full(), before=before, after=after))
    used = {"x", "y"}
    for linear, names in ((before.mix, "l"), (after.mix, "w"), (layer.aggregation.linear, "o")):
        used |= fill(linear.weight, linear.bias, golden, names, "P" if names in "lw" else "W")
    for name in "qkv":
        used |= fill(*layer.projection.matrix(name), golden, name, "W")
    assert used == tensors.keys()
    pos = torch.arange(x.shape[1]).expand(x.shape[:2])
    close(layer(x, None, Context(pos)).y, tensors["y"])


def fill(weight: Tensor, bias: Tensor | None, golden: Golden, name: str, matrix: str) -> set[str]:
    """Weights are stored for y = x W + b; an absent b is none. Returns the names that were used."""
    weight.data.copy_(golden.tensors[f"{matrix}_{name}"].T)
    if f"b_{name}" in golden.tensors:
        bias.data.copy_(golden.tensors[f"b_{name}"])
        return {f"{matrix}_{name}", f"b_{name}"}
    if bias is not None:
        bias.data.zero_()
    return {f"{matrix}_{name}"}
