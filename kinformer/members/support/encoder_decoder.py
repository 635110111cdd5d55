"""The two stacks of the 2017 Transformer, which its descendants change in one place."""

from kinformer.core.layer import Layer
from kinformer.core.pattern import Pattern
from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.support.window_sizes import one_per_layer
from kinformer.members.support.wiring import SINUSOIDS, START, Wiring
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP


def encoder_decoder(
    wiring: Wiring, depth: int, hidden: int | None, pattern: str | tuple[str, ...] = "Full()"
) -> tuple[Stack, Stack]:
    """The stacks of `encoder_decoder_blocks`."""
    encoder, decoder = encoder_decoder_blocks(wiring, depth, hidden, pattern)
    return wiring.stack(encoder), wiring.stack(decoder)


def encoder_decoder_blocks(
    wiring: Wiring, depth: int, hidden: int | None, pattern: str | tuple[str, ...] = "Full()", *, dropout: float = 0.0
) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """`depth` blocks that read the source under a pattern, and as many that write under the same, the past alone.

    A tuple has a pattern for each of them. Every written token reads all of the source.

    dropout: the share of attention weights that training drops; 0 in the 2017 paper.
    """
    patterns = tuple(map(parse, one_per_layer("pattern", pattern, depth)))

    def encoder(reads: Pattern) -> Layer:
        return wiring.block(wiring.attention(reads, dropout=dropout), MLP(wiring.d, hidden, activation="relu"))

    def decoder(reads: Pattern) -> Layer:
        past = Causal() if reads == Full() else Causal() & reads
        source = wiring.attention(Full(), cross=True, dropout=dropout)
        return wiring.block(wiring.attention(past, dropout=dropout), source, MLP(wiring.d, hidden, activation="relu"))

    return tuple(map(encoder, patterns)), tuple(map(decoder, patterns))


def embedding_std(wiring: Wiring) -> float:
    """The standard deviation of their embeddings at the start, where the first loss is near ln(vocab).

    The authors' code starts them at d**-0.5; scaled by sqrt(d) and tied, they let the head repeat what it has read.
    Waves stand in its way, so beside them they may be larger, and learn faster.
    """
    return wiring.start if wiring.position in SINUSOIDS else min(START, 4 / wiring.d)
