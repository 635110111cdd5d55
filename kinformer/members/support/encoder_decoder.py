"""Encoder and decoder stacks of the 2017 Transformer, for members that change one part of it."""

from kinformer.core.layer import Layer
from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.support.window_sizes import one_per_layer
from kinformer.members.support.wiring import SINUSOIDS, START, Wiring
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP, Activation


def encoder_decoder(
    wiring: Wiring, depth: int, hidden: int | None, pattern: str | tuple[str, ...] = "Full()"
) -> tuple[Stack, Stack]:
    """Build the encoder and the decoder of the 2017 Transformer as stacks.

    wiring, depth, hidden, pattern: arguments of `encoder_decoder_blocks`.
    """
    encoder, decoder = encoder_decoder_blocks(wiring, depth, hidden, pattern)
    return wiring.stack(encoder), wiring.stack(decoder)


def encoder_decoder_blocks(
    wiring: Wiring,
    depth: int,
    hidden: int | None,
    pattern: str | tuple[str, ...] = "Full()",
    *,
    decoder_depth: int | None = None,
    activation: Activation = "relu",
    dropout: float = 0.0,
) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """Build the blocks of the encoder and of the decoder of the 2017 Transformer.

    The decoder reads earlier target tokens under the same pattern, and every target token reads the whole source.

    wiring: positions, norms and heads of the blocks.
    depth: number of blocks of the encoder.
    hidden: width of the feed-forward layer; 4 d if None.
    pattern: pattern of self-attention in all blocks, or a tuple with one pattern per block from the bottom.
    decoder_depth: number of blocks of the decoder; `depth` if None.
    activation: nonlinearity of the feed-forward layers.
    dropout: dropout probability of attention weights; 0 in the 2017 paper.
    """

    def mlp() -> MLP:
        return MLP(wiring.d, hidden, activation=activation)

    def encoder(reads: Pattern) -> Layer:
        return wiring.block(wiring.attention(reads, dropout=dropout), mlp())

    def decoder(reads: Pattern) -> Layer:
        past = Causal() if reads == Full() else Causal() & reads
        source = wiring.attention(Full(), cross=True, dropout=dropout)
        return wiring.block(wiring.attention(past, dropout=dropout), source, mlp())

    depths = (depth, depth if decoder_depth is None else decoder_depth)
    sides = [map(parse, one_per_layer("pattern", pattern, number)) for number in depths]
    return tuple(map(encoder, sides[0])), tuple(map(decoder, sides[1]))


def embedding_std(wiring: Wiring) -> float:
    """Return the initial standard deviation of the embeddings that makes the first loss near ln(vocab).

    The authors' code uses d**-0.5. Embeddings of that size, scaled by sqrt(d) and tied to the head, make the untrained
    model repeat its input. Added sinusoids hinder this, so embeddings may be larger with them and then learn faster.

    wiring: positions and width of the model.
    """
    return wiring.start if wiring.position in SINUSOIDS else min(START, 4 / wiring.d)
