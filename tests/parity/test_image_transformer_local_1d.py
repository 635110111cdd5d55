"""Local attention over blocks of a picture's row, against a public Image Transformer."""

import torch

from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.image_1d import Image1D
from kinformer.nn.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens
from tests.parity.test_multi_query_attention import fill


@goldens("image_transformer_local_1d")
def test_image_transformer_local_1d(golden: Golden) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    heads, widths = sizes["heads"], [tensors[f"W_{name}"].shape[1] for name in ("k", "v")]
    head_dim, v_dim = (width // heads for width in widths)
    # its memory is a block of the same size
    pattern = Image1D(sizes["block"], sizes.get("memory", sizes["block"]))
    layer = Attention(QKV(tensors["x"].shape[2], heads, head_dim=head_dim, v_dim=v_dim), Softmax(pattern)).double()
    for name in ("q", "k", "v"):
        fill(layer.projection.matrix(name), tensors[f"W_{name}"], tensors.get(f"b_{name}"))
    fill((layer.aggregation.linear.weight, layer.aggregation.linear.bias), tensors["W_o"], tensors.get("b_o"))
    with torch.no_grad():
        close(layer(tensors["x"]).y, tensors["y"])
