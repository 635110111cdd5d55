"""Sinks: a window, and a few first tokens that all may read."""

from kinformer import Attention, member
from kinformer.core.patterns.causal import Causal
from kinformer.models.lm import LM
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import GatedMLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.rms import RMSNorm
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.projections.qkv import QKV


@member
def sinks(d: int = 128, depth: int = 4, heads: int = 4, window: int = 64, first: int = 2, vocab: int = 256) -> LM:
    """A decoder whose cache keeps the window and the first tokens. Source: Xiao et al., 2023, arXiv:2309.17453."""

    def block() -> PreNorm:
        pattern = Causal() & (Band(window) | Tokens(first))
        attention = Attention(QKV(d, heads, rotation=Rotary(d // heads)), Softmax(pattern))
        return PreNorm(attention, GatedMLP(d), norm=RMSNorm)

    return LM(vocab, d, Stack([block() for _ in range(depth)], RMSNorm(d)))


EXAMPLES = (lambda: sinks(d=16, depth=2, heads=2, window=4, vocab=11),)
