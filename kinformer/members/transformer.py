"""Transformer: the encoder-decoder of 2017."""

from typing import Any

from kinformer.core.checks import check_flag
from kinformer.core.discover import member
from kinformer.core.layer import Layer
from kinformer.core.training_recipe import Recipe
from kinformer.members.bloom import NormalisedInput
from kinformer.members.support.encoder_decoder import embedding_std, encoder_decoder_blocks
from kinformer.members.support.wiring import Norms, Positions, Wiring
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.blocks.positioned_block import PositionedBlock
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import Activation
from kinformer.nn.initialise import Scheme, at_width, initialise


@member(
    cost="L**2",
    recipe=Recipe(schedule="noam", warmup=0.04, betas=(0.9, 0.98), eps=1e-9),
    needs={"length": "position=learned"},
)
def transformer(
    d: int = 512,
    depth: int = 6,
    heads: int = 8,
    head_dim: int | None = None,
    hidden: int = 2048,
    pattern: str | tuple[str, ...] = "Full()",
    position: Positions = "sinusoidal",
    norm: Norms = "post",
    length: int = 1024,
    init: Scheme = "library",
    vocab: int = 256,
    dropout: float = 0.1,
    smoothing: float = 0.1,
    decoder_depth: int | None = None,
    activation: Activation = "relu",
    scale: bool = True,
    tie: bool = True,
    embedding_norm: bool = False,
    head_bias: bool = False,
    begin: int | None = None,
    end: int | None = None,
    first: int | None = None,
) -> Seq2Seq:
    """Transformer (Vaswani et al., 2017, arXiv:1706.03762): a post-norm encoder and decoder.

    Choose it for pairs of sequences; the default is the base model of the paper. Choose `gpt` for text without a
    source. Source, target and head share one embedding, scaled by sqrt(d). Every target token reads the whole source.

    d: model width.
    depth: number of encoder blocks, and of decoder blocks without `decoder_depth`.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    hidden: width of the feed-forward layer.
    pattern: self-attention pattern of encoder and decoder; one for all blocks, or a tuple with one for each block from
        the bottom.
    position: position encoding on each side; "sinusoidal" in the paper. "learned" positions have `length` rows.
    norm: "post" as in the paper, which needs a warm-up, or "pre" (Xiong et al., 2020, arXiv:2002.04745).
    length: longest row in tokens (learned positions).
    init: initial linear maps (`kinformer.nn.initialise`). The paper states none; its code has "xavier", which learns as
        fast as "library".
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and sublayer outputs.
    smoothing: label smoothing.
    decoder_depth: number of decoder blocks; `depth` if None.
    activation: nonlinearity of the feed-forward layers; "silu" in Marian, "gelu" in BART.
    scale: multiply embedded tokens by sqrt(d), as in the paper.
    tie: use the embedding as the output head.
    embedding_norm: normalise the sum of embedded tokens and positions. Each side then has its own norm and its own
        learned positions, as in BART (Lewis et al., 2019, arXiv:1910.13461).
    head_bias: give the head a bias, as in Marian.
    begin, end: ids of the tokens that open and close a target, if they are among the tokens; `vocab` and the id after
        it if None.
    first: id of a token that follows `begin` in every target, as in BART; None for none.

    The learning rate is the paper's, d^-1/2 min(t^-1/2, t 4000^-3/2) in step t of 100,000, scaled to the length of the
    training. It peaks after 4% of the training. `--warmup 4000` gives exactly the paper's steps. Adam's betas and eps
    are the paper's, 0.9, 0.98 and 1e-9.

    Differences: the paper has no weight decay; here it is 0.1. Embeddings start small, so that the first loss is near
    ln(vocab). With the d**-0.5 of the authors' code the tied head repeats the input token, and the first loss is more
    than twice that.
    """
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout)

    def stack(blocks: tuple[Layer, ...]) -> Stack:
        return wiring.stack([_normalised_input(wiring), *blocks] if embedding_norm else blocks)

    blocks = encoder_decoder_blocks(wiring, depth, hidden, pattern, decoder_depth=decoder_depth, activation=activation)
    model = Seq2Seq(
        vocab,
        d,
        *map(stack, blocks),
        position=None if check_flag("embedding_norm", embedding_norm) else wiring.added_position(),
        scale=d**0.5 if check_flag("scale", scale) else 1.0,
        tie=check_flag("tie", tie),
        std=embedding_std(wiring),
        smoothing=smoothing,
        dropout=dropout,
        begin=begin,
        end=end,
        first=first,
        head_bias=check_flag("head_bias", head_bias),
    )
    return initialise(model, init, std=at_width(0.02, 768, d))


def _normalised_input(wiring: Wiring) -> Layer:
    """Return the layer that adds positions to embedded tokens and normalises the sum."""
    norm, position = NormalisedInput(wiring.d, wiring.eps), wiring.added_position()
    return norm if position is None else PositionedBlock(norm, position)


TINY: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "hidden": 24, "vocab": 11, "dropout": 0.0}
EXAMPLES = (
    lambda: transformer(**TINY),
    lambda: transformer(**TINY, position="learned", length=64, norm="pre", head_dim=6, pattern="Band(8)"),
    lambda: transformer(
        **TINY,
        position="learned",
        length=64,
        embedding_norm=True,
        decoder_depth=1,
        activation="gelu",
        scale=False,
        tie=False,
        head_bias=True,
        begin=2,
        end=2,
        first=0,
    ),
    lambda: transformer(
        d=16,
        depth=2,
        heads=2,
        hidden=24,
        vocab=11,
        dropout=0.0,
        position="relative",
        init="normal",
        pattern=("Band(3)", "Full()"),
    ),
)
