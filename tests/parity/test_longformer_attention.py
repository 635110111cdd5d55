"""GlobalSoftmax against Hugging Face's LongformerSelfAttention: global tokens and padding per example."""

import torch

from kinformer.core.layer import Context
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.global_softmax import GlobalSoftmax
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.marked import Marked
from kinformer.nn.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens


@goldens("longformer_attention")
def test_longformer(golden: Golden, float64: None) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    x = tensors["x"]
    layer = Attention(QKV(sizes["d"], sizes["heads"]), GlobalSoftmax(Band(sizes["w"])), aggregation=Concat())
    for linear, names in ((layer.projection.qkv, "qkv"), (layer.side, ["q_g"]), (layer.key_side, ["k_g", "v_g"])):
        weights = [tensors[f"W_{name}"].T for name in names]
        biases = [tensors.get(f"b_{name}", w.new_zeros(len(w))) for name, w in zip(names, weights, strict=True)]
        linear.weight.data.copy_(torch.cat(weights))
        linear.bias.data.copy_(torch.cat(biases))
    parameters = {f"{kind}_{name}{side}" for kind in "Wb" for name in "qkv" for side in ("", "_g")}
    assert tensors.keys() <= parameters | {"x", "global_mask", "pad", "y"}
    padding = tensors["pad"].bool() if "pad" in tensors else torch.zeros(x.shape[:2], dtype=torch.bool)
    pos = torch.arange(x.shape[1]).expand(x.shape[:2]).masked_fill(padding, -1)
    out = layer(x, None, Context(pos, also=Marked(tensors["global_mask"].bool())))
    close(out.y, tensors["y"])
