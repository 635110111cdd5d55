"""Shaw's Transformer: relative positions in keys and values, and no other positions."""

from kinformer.core.discover import member
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.encoder_decoder import embedding_std, encoder_decoder
from kinformer.members.support.wiring import Norms, Wiring
from kinformer.models.seq2seq import Seq2Seq
from kinformer.nn.initialise import Scheme, at_width, initialise


@member(cost="L**2", recipe=Recipe(schedule="noam", warmup=0.04, betas=(0.9, 0.98), eps=1e-9))
def shaw(
    d: int = 512,
    depth: int = 6,
    heads: int = 8,
    head_dim: int | None = None,
    hidden: int = 1024,
    clip: int = 16,
    values: bool = True,
    by_head: bool = False,
    pattern: str = "Full()",
    norm: Norms = "post",
    init: Scheme = "library",
    vocab: int = 256,
    dropout: float = 0.1,
    smoothing: float = 0.1,
) -> Seq2Seq:
    """Transformer with relative positions (Shaw et al., 2018, arXiv:1803.02155), for pairs of sequences.

    Choose it over `transformer` if a token's neighbours matter more than its place, and for rows longer than the
    training rows: all distances beyond `clip` are alike. Choose `gpt(position="relative")` for text without a source.

    Each self-attention layer has a table of keys and, with `values`, a table of values. The heads of a layer share
    them. A table has 2 clip + 1 vectors. In the decoder, which never reads ahead, it has clip + 1. No positions are
    added to embeddings, and cross-attention ignores distances.

    d: model width; the default sizes are the paper's base model.
    depth: number of blocks, on each side.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    hidden: width of the feed-forward layer.
    clip: largest distance with a vector of its own.
    values: add relative vectors to values too; the paper finds that leaving them out costs little.
    by_head: give each head its own tables, as in the paper's base model.
    pattern: expression for the tokens that each token reads, as in `transformer`.
    norm: "post" or "pre".
    init: initial weights, as in `transformer`; the settings of the training are also the same.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and sublayer outputs.
    smoothing: label smoothing.
    """
    wiring = Wiring(
        d, heads, head_dim, "relative", clip=clip, values=values, by_head=by_head, norm=norm, dropout=dropout
    )
    encoder, decoder = encoder_decoder(wiring, depth, hidden, pattern)
    model = Seq2Seq(
        vocab, d, encoder, decoder, scale=d**0.5, std=embedding_std(wiring), smoothing=smoothing, dropout=dropout
    )
    return initialise(model, init, std=at_width(0.02, 768, d))


EXAMPLES = (
    lambda: shaw(d=16, depth=2, heads=2, hidden=24, clip=5, vocab=11, dropout=0.0),
    lambda: shaw(
        d=16,
        depth=1,
        heads=2,
        hidden=24,
        clip=5,
        values=False,
        by_head=True,
        pattern="Band(5)",
        norm="pre",
        init="xavier",
        vocab=11,
        dropout=0.0,
    ),
)
