"""BigBird's block-sparse attention against Hugging Face's, under the random blocks that it drew."""

import torch

from kinformer.core.layer import Context
from kinformer.core.pattern import Heads
from kinformer.core.patterns.blocks import Blocks
from kinformer.nn.aggregations.out_projection import Concat
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens


@goldens("bigbird_attention")
def test_bigbird(golden: Golden, float64: None) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    block, x, random_blocks = sizes["block"], tensors["x"], tensors["random_blocks"].tolist()
    parameters = {f"{kind}_{name}" for kind in "Wb" for name in "qkv"}
    assert tensors.keys() <= parameters | {"x", "random_blocks", "pad", "y"}
    # the first and the last block read all, and so draw none
    tables = [((), *(tuple(sorted(set(blocks))) for blocks in head), ()) for head in random_blocks]
    ends = (*range(block), *range(x.shape[1] - block, x.shape[1]))
    pattern = Block(block, 1, 1) | Tokens(ends) | Rows(ends) | Heads(*(Blocks(table, block) for table in tables))
    layer = Attention(QKV(sizes["d"], sizes["heads"]), Softmax(pattern), aggregation=Concat())
    weights = [tensors[f"W_{name}"].T for name in "qkv"]
    biases = [tensors.get(f"b_{name}", w.new_zeros(len(w))) for name, w in zip("qkv", weights, strict=True)]
    layer.projection.qkv.weight.data.copy_(torch.cat(weights))
    layer.projection.qkv.bias.data.copy_(torch.cat(biases))
    padding = tensors["pad"].bool() if "pad" in tensors else torch.zeros(x.shape[:2], dtype=torch.bool)
    pos = torch.arange(x.shape[1]).expand(x.shape[:2]).masked_fill(padding, -1)
    close(layer(x, None, Context(pos)).y, tensors["y"])
