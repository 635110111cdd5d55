"""What both Sinkhorn Transformers are made of."""

from typing import Literal

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.checks import at_least, one_of
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.sinkhorn import Sinkhorn
from kinformer.mechanisms.support.sorting import BlockNet, PairNet, SortNet
from kinformer.projections.qkv import QKV

Net = Literal["blocks", "pairs"]


def sort_net(net: Net, width: int, block: int, length: int) -> SortNet:
    """What sorts blocks of heads `width` wide, for rows of up to `length`."""
    if one_of("net", net, Net) == "pairs":
        return PairNet(width)
    return BlockNet(width, -(-at_least("length", length, 1) // at_least("block", block, 1)))


def sorting_block(d: int, heads: int, head_dim: int | None, mechanism: Sinkhorn, dropout: float) -> PreNorm:
    """A pre-norm block of sorted attention."""
    return PreNorm(Attention(QKV(d, heads, head_dim=head_dim), mechanism), MLP(d), dropout=dropout)
