"""What both Sinkhorn Transformers are made of."""

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
    """What sorts blocks of heads `width` wide, for rows of up to `length`."""
    if check_option("net", net, Net) == "pairs":
        return PairNet(width)
    return BlockNet(width, -(-check_at_least("length", length, 1) // check_at_least("block", block, 1)))


def sorting_block(d: int, heads: int, head_dim: int | None, mechanism: Sinkhorn, dropout: float) -> PreNorm:
    """A pre-norm block of sorted attention."""
    return PreNorm(Attention(QKV(d, heads, head_dim=head_dim), mechanism), MLP(d), dropout=dropout)
