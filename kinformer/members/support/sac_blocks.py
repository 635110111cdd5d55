"""Parts of the members sac and sac_encoder: layers that choose edges, and layers that reuse them."""

from collections.abc import Callable
from typing import Literal

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.mechanism import Mechanism
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.projections.qkv import QKV

Share = Literal["model", "layer", "head"]


def share_mechanisms(
    share: Share, depth: int, choose: Callable[..., Mechanism], reuse: Callable[[], Mechanism]
) -> list[Mechanism]:
    """Return the attention mechanism of each SAC layer, from the bottom.

    An edge is a pair of tokens: one reads the other.

    share: "model" if the lowest layer chooses edges for all layers, "layer" if each layer chooses its own, "head" if
        each head chooses its own.
    depth: number of layers.
    choose: function that makes a mechanism that chooses edges.
    reuse: function that makes a mechanism that reuses the edges of a lower layer.
    """
    check_at_least("depth", depth, 1)
    if check_option("share", share, Share) == "model":
        return [choose(send=True), *(reuse() for _ in range(depth - 1))]
    return [choose(by=share, seed=n) for n in range(depth)]


def block(d: int, heads: int, head_dim: int | None, mechanism: Mechanism, dropout: float) -> PreNorm:
    """Build a pre-norm block with SAC and a feed-forward layer.

    d: model width.
    heads: number of heads.
    head_dim: width of a head; d / heads if None.
    mechanism: attention mechanism that chooses edges or reuses them.
    dropout: dropout probability of sublayer outputs.
    """
    return PreNorm(Attention(QKV(d, heads, head_dim=head_dim), mechanism), MLP(d), dropout=dropout)
