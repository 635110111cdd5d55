"""Parts of the members sinkhorn_transformer and sinkhorn_encoder."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_option
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.sinkhorn import Sinkhorn
from kinformer.nn.mechanisms.sort_networks import BlockNet, PairNet, SortNet
from kinformer.nn.projections.qkv import QKV

Net = Literal["blocks", "pairs"]


def sort_net(net: Net, width: int, block: int, length: int) -> SortNet:
    """Build the network that sorts the blocks of a row.

    net: "blocks" scores positions of blocks from their content; "pairs" compares pairs of blocks.
    width: width of a head.
    block: number of tokens in a block.
    length: longest row in tokens; "pairs" has no limit.
    """
    if check_option("net", net, Net) == "pairs":
        return PairNet(width)
    return BlockNet(width, -(-check_at_least("length", length, 1) // check_at_least("block", block, 1)))


def sorting_block(d: int, heads: int, head_dim: int | None, mechanism: Sinkhorn, dropout: float) -> PreNorm:
    """Build a pre-norm block with attention over sorted blocks of the row and a feed-forward layer.

    d: model width.
    heads: number of heads.
    head_dim: width of a head; d / heads if None.
    mechanism: attention over sorted blocks.
    dropout: dropout probability of sublayer outputs.
    """
    return PreNorm(Attention(QKV(d, heads, head_dim=head_dim), mechanism), MLP(d), dropout=dropout)
