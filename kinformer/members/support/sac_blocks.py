"""What both forms of SAC are made of: who chooses edges for whom."""

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
    """The mechanism of each layer: the lowest one chooses for all, or each for itself or its heads."""
    check_at_least("depth", depth, 1)
    if check_option("share", share, Share) == "model":
        return [choose(send=True), *(reuse() for _ in range(depth - 1))]
    return [choose(by=share, seed=n) for n in range(depth)]


def block(d: int, heads: int, head_dim: int | None, mechanism: Mechanism, dropout: float) -> PreNorm:
    """A pre-norm block of it."""
    return PreNorm(Attention(QKV(d, heads, head_dim=head_dim), mechanism), MLP(d), dropout=dropout)
