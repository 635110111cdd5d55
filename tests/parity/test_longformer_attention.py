"""GlobalSoftmax against Hugging Face's LongformerSelfAttention: global tokens and padding per example."""

import torch
from torch import Tensor

from kinformer.attention import Attention
from kinformer.core.layer import Context
from kinformer.mechanisms.global_softmax import GlobalSoftmax
from kinformer.patterns.band import Band
from kinformer.patterns.marked import Marked
from tests.parity.goldens import Golden, close, goldens


def by_head(parts: list[Tensor], heads: int) -> Tensor:
    """Rows of several matrices (or biases), head by head: how a layer's sides are laid out."""
    return torch.cat([part.unflatten(0, (heads, -1)) for part in parts], 1).flatten(0, 1)


@goldens("longformer_attention")
def test_longformer(golden: Golden, float64: None) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    x, heads = tensors["x"], sizes["heads"]
    layer = Attention(sizes["d"], heads, GlobalSoftmax(Band(sizes["w"])), out=False)
    for name in "qkv":
        linear = getattr(layer.projection, name)
        linear.weight.data.copy_(tensors[f"W_{name}"].T)
        linear.bias.data.copy_(bias(tensors, f"b_{name}", linear.bias))
    columns = [tensors[f"W_{name}_g"].T for name in "qkv"]
    layer.side.weight.data.copy_(by_head(columns, heads))
    biases = [bias(tensors, f"b_{name}_g", column[:, 0]) for name, column in zip("qkv", columns, strict=True)]
    layer.side.bias.data.copy_(by_head(biases, heads))
    parameters = {f"{kind}_{name}{side}" for kind in "Wb" for name in "qkv" for side in ("", "_g")}
    assert tensors.keys() <= parameters | {"x", "global_mask", "pad", "y"}
    padding = tensors["pad"].bool() if "pad" in tensors else torch.zeros(x.shape[:2], dtype=torch.bool)
    pos = torch.arange(x.shape[1]).expand(x.shape[:2]).masked_fill(padding, -1)
    out = layer(x, None, Context(pos, also=Marked(tensors["global_mask"].bool())))
    close(out.y, tensors["y"])


def bias(tensors: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    return tensors.get(name, torch.zeros_like(like))
