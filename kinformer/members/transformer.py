"""The Transformer: the encoder-decoder of 2017."""

from typing import Any

from kinformer.discover import member
from kinformer.members.support.encoder_decoder import encoder_decoder, start
from kinformer.members.support.wiring import Norms, Positions, Wiring
from kinformer.models.seq2seq import Seq2Seq
from kinformer.train.recipe import Recipe


@member(recipe=Recipe(lr=7e-4, warmup=0.04, schedule="inverse_sqrt"))
def transformer(
    d: int = 512, depth: int = 6, heads: int = 8, head_dim: int | None = None, hidden: int = 2048,
    pattern: str | tuple[str, ...] = "Full()", position: Positions = "sinusoidal", norm: Norms = "post",
    length: int = 1024, vocab: int = 256, dropout: float = 0.1, smoothing: float = 0.1
) -> Seq2Seq:
    """The Transformer (Vaswani et al., 2017, arXiv:1706.03762): `depth` encoder and as many decoder blocks, post-norm.

    The base model of the paper, for pairs of sequences: sinusoidal positions, one embedding for source, target and
    head, scaled by sqrt(d), label smoothing. For text alone choose `gpt`. `norm` is "post" as in the paper, which wants
    a warm-up (`kinformer.train.noam` is the paper's), or "pre" (Xiong et al., 2020, arXiv:2002.04745). `pattern` says
    who reads whom in the encoder, and in the decoder among what was written, in all blocks or for each from the bottom;
    every target token reads all of the source. `position` is how each side knows order; learned ones have `length`
    rows.

    Embeddings start small, so that the first loss is near ln(vocab): with the d**-0.5 of the authors' code the tied
    head repeats what it has read, at more than twice that. Rate and warm-up are the paper's for the base model,
    a peak of 7e-4 after 4% of the training; the optimiser is this library's AdamW(0.9, 0.95) with a decay of 0.1.
    """
    made = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout)

    encoder, decoder = encoder_decoder(made, depth, hidden, pattern)
    return Seq2Seq(
        vocab, d, encoder, decoder, position=made.added(), scale=d**0.5, std=start(made), smoothing=smoothing,
        dropout=dropout
    )


TINY: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "hidden": 24, "length": 64, "vocab": 11, "dropout": 0.0}
EXAMPLES = (
    lambda: transformer(**TINY),
    lambda: transformer(**TINY, position="learned", norm="pre", head_dim=6, pattern="Band(8)"),
)
