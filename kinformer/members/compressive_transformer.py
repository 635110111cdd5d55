"""Compressive Transformer: a Transformer-XL whose oldest memories are compressed instead of forgotten."""

from typing import Literal

from kinformer.attention import Attention
from kinformer.biases.transformer_xl import TransformerXL
from kinformer.blocks.post_norm import PostNorm
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.losses.compression import AttentionReconstruction, AutoEncoding
from kinformer.mechanisms.softmax import Softmax
from kinformer.memories.compression import Conv, Dilated, MostUsed
from kinformer.memories.compressive import Compressive, Max, Mean
from kinformer.models.lm import LM
from kinformer.patterns.causal import Causal


@member
def compressive_transformer(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    segment: int = 64,
    memory: int = 64,
    compressed: int = 64,
    rate: int = 4,
    compression: Literal["mean", "max", "conv", "dilated", "most_used"] = "conv",
    loss: Literal["attention", "autoencoding"] = "attention",
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Compressive Transformer (Rae et al., 2019, arXiv:1911.05507): a Transformer-XL with a second, compressed memory.

    Choose it for what must be remembered longer than a Transformer-XL does: each layer reads its `segment`, `memory`
    tokens before it, and `rate` times `compressed` tokens before those. `loss` trains the compressions that learn.
    """
    first = TransformerXL(heads, d // heads)
    biases = [first, *(TransformerXL(heads, d // heads, u=first.u, v=first.v) for _ in range(depth - 1))]
    ways = {
        "mean": lambda: Mean(rate),
        "max": lambda: Max(rate),
        "conv": lambda: Conv(d, rate),
        "dilated": lambda: Dilated(d, rate),
        "most_used": lambda: MostUsed(rate),
    }

    def block(bias: TransformerXL) -> PostNorm:
        learned = compression in ("conv", "dilated")
        lost = AttentionReconstruction() if loss == "attention" else AutoEncoding(d, rate)
        kept = Compressive(segment, memory, compressed, ways[compression](), lost if learned else None)
        attention = Attention(d, heads, Softmax(Causal() & kept.reads, bias, dropout=dropout), memory=kept, bias=False)
        return PostNorm(attention, MLP(d, activation="relu", dropout=dropout), dropout=dropout)

    penalties = {AttentionReconstruction.key: 1.0, AutoEncoding.key: 1.0}
    return LM(vocab, d, Stack(block(bias) for bias in biases), dropout=dropout, penalties=penalties)


EXAMPLES = (
    lambda: compressive_transformer(d=16, depth=2, heads=2, segment=8, memory=3, compressed=2, rate=4, vocab=11),
)
