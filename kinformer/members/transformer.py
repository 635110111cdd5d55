"""The Transformer: the encoder-decoder of 2017."""

from kinformer.attention import Attention
from kinformer.blocks.post_norm import PostNorm
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.models.seq2seq import Seq2Seq
from kinformer.patterns.causal import Causal
from kinformer.patterns.full import Full
from kinformer.positions.sinusoidal import Sinusoidal
from kinformer.projections.qkv import QKV
from kinformer.train.recipe import Recipe


@member(recipe=Recipe(lr=7e-4, warmup=0.04, schedule="inverse_sqrt"))
def transformer(
    d: int = 512, depth: int = 6, heads: int = 8, hidden: int = 2048, vocab: int = 256, dropout: float = 0.1,
    smoothing: float = 0.1
) -> Seq2Seq:
    """The Transformer (Vaswani et al., 2017, arXiv:1706.03762): `depth` encoder and as many decoder blocks, post-norm.

    The base model of the paper, for pairs of sequences: sinusoidal positions, one embedding for source, target and
    head, scaled by sqrt(d), label smoothing. Post-norm wants a warm-up; the paper's is `kinformer.train.noam`. For text
    alone choose `gpt`. Its recipe is the paper's for the base model: a peak of 7e-4 after 4% of the training.
    """

    def encoder() -> PostNorm:
        itself = Attention(QKV(d, heads), Softmax(Full(), lse=False))
        return PostNorm(itself, MLP(d, hidden, activation="relu"), dropout=dropout)

    def decoder() -> PostNorm:
        itself = Attention(QKV(d, heads), Softmax(Causal(), lse=False))
        source = Attention(QKV(d, heads), Softmax(Full(), lse=False), cross=True)
        return PostNorm(itself, source, MLP(d, hidden, activation="relu"), dropout=dropout)

    return Seq2Seq(
        vocab,
        d,
        Stack([encoder() for _ in range(depth)]),
        Stack([decoder() for _ in range(depth)]),
        position=Sinusoidal(d),
        scale=d**0.5,
        smoothing=smoothing,
        dropout=dropout,
    )


EXAMPLES = (lambda: transformer(d=16, depth=2, heads=2, hidden=24, vocab=11, dropout=0.0),)
