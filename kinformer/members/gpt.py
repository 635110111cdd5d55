"""GPT: the decoder-only Transformer."""

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.softmax import Softmax
from kinformer.models.lm import LM
from kinformer.norms.layer import LayerNorm
from kinformer.patterns.causal import Causal
from kinformer.positions.learned import Learned
from kinformer.projections.qkv import QKV


@member
def gpt(d: int = 128, depth: int = 5, heads: int = 4, length: int = 1024, vocab: int = 256, dropout: float = 0.0) -> LM:
    """GPT-2 (Radford et al., 2019): causal attention, pre-norm blocks, learned positions, tied embeddings.

    The baseline that every other decoder is compared with. `length` is the longest row it can read.
    """

    def block() -> PreNorm:
        attention = Attention(QKV(d, heads), Softmax(Causal(), dropout=dropout, lse=False))
        return PreNorm(attention, MLP(d, activation="gelu_tanh"), dropout=dropout)

    body = Stack([block() for _ in range(depth)], LayerNorm(d))
    return LM(vocab, d, body, position=Learned(d, length), dropout=dropout)


EXAMPLES = (lambda: gpt(d=16, depth=2, heads=2, length=64, vocab=11),)
