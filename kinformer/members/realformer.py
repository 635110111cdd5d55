"""RealFormer: scores of attention that add up through the blocks."""

from kinformer.attention import Attention
from kinformer.blocks.post_norm import PostNorm
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.explicit import Explicit
from kinformer.models.lm import LM
from kinformer.patterns.causal import Causal
from kinformer.positions.learned import Learned
from kinformer.projections.qkv import QKV
from kinformer.scores.residual import ResidualScores


@member
def realformer(
    d: int = 128, depth: int = 5, heads: int = 4, length: int = 1024, vocab: int = 256, dropout: float = 0.0
) -> LM:
    """RealFormer (He et al., 2020, arXiv:2012.11747): each block's scores are added to those of the block beneath.

    Choose it for deep stacks: the residual path through the scores lets blocks refine what the first ones attend to,
    for no parameters. Post-norm blocks as in the paper, which has encoders; here it is a decoder. Every block has the
    same pattern, because scores are handed up pair by pair. It holds each block's matrix of scores, so memory grows
    with the square of a row. `length` is the longest row it can read.
    """

    def block() -> PostNorm:
        mechanism = Explicit(Causal(), score=ResidualScores(), up=True, dropout=dropout)
        return PostNorm(Attention(QKV(d, heads), mechanism), MLP(d), dropout=dropout)

    return LM(vocab, d, Stack(block() for _ in range(depth)), position=Learned(d, length), dropout=dropout)


EXAMPLES = (lambda: realformer(d=16, depth=2, heads=2, length=64, vocab=11),)
