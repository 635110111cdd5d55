"""BigBird's block-sparse attention against Hugging Face's, under the random blocks that it drew."""

import torch

from kinformer.aggregations.out_projection import Concat
from kinformer.attention import Attention
from kinformer.core.layer import Context
from kinformer.core.pattern import Heads
from kinformer.depth.global_ends import GlobalEnds
from kinformer.mechanisms.softmax import Softmax
from kinformer.patterns.block import Block
from kinformer.patterns.blocks import Blocks
from kinformer.patterns.rows import Rows
from kinformer.patterns.tokens import Tokens
from kinformer.projections.qkv import QKV
from tests.parity.goldens import Golden, close, goldens


@goldens("bigbird_attention")
def test_bigbird(golden: Golden, float64: None) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    block, x, drawn = sizes["block"], tensors["x"], tensors["random_blocks"].tolist()
    parameters = {f"{kind}_{name}" for kind in "Wb" for name in "qkv"}
    assert tensors.keys() <= parameters | {"x", "random_blocks", "y"}
    # the first and the last block read all, and so draw none
    tables = [((), *(tuple(sorted(set(blocks))) for blocks in head), ()) for head in drawn]
    pattern = Block(block, 1, 1) | Tokens(block) | Rows(block) | Heads(*(Blocks(table, block) for table in tables))
    layer = Attention(QKV(sizes["d"], sizes["heads"]), Softmax(pattern), aggregation=Concat())
    weights = [tensors[f"W_{name}"].T for name in "qkv"]
    biases = [tensors.get(f"b_{name}", w.new_zeros(len(w))) for name, w in zip("qkv", weights, strict=True)]
    layer.projection.qkv.weight.data.copy_(torch.cat(weights))
    layer.projection.qkv.bias.data.copy_(torch.cat(biases))
    close(GlobalEnds(layer, block)(x, None, Context.of(x)).y, tensors["y"])
