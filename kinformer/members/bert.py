"""BERT: the encoder that fills in hidden tokens."""

from functools import partial

from kinformer.attention import Attention
from kinformer.blocks.post_norm import PostNorm
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.models.mlm import MLM
from kinformer.norms.layer import LayerNorm
from kinformer.patterns.full import Full
from kinformer.positions.learned import Learned
from kinformer.projections.qkv import QKV

EPS = 1e-12


@member
def bert(
    d: int = 128, depth: int = 5, heads: int = 4, length: int = 1024, kinds: int = 2, vocab: int = 256,
    dropout: float = 0.0
) -> MLM:
    """BERT (Devlin et al., 2018, arXiv:1810.04805): every token reads every token, post-norm, learned positions.

    Choose it to understand text that is there as a whole. `length` is the longest row it can read; `kinds` is how many
    kinds of segments it tells apart, the paper's first and second sentence. It is trained by hiding tokens alone.
    """

    def block() -> PostNorm:
        attention = Attention(QKV(d, heads), Softmax(Full(), dropout=dropout, lse=False))
        return PostNorm(attention, MLP(d), norm=partial(LayerNorm, eps=EPS), dropout=dropout)

    body = Stack([block() for _ in range(depth)])
    return MLM(vocab, d, body, position=Learned(d, length), kinds=kinds, eps=EPS, dropout=dropout)


EXAMPLES = (lambda: bert(d=16, depth=2, heads=2, length=64, vocab=11),)
