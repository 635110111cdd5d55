"""Longformer: an encoder with a window for most tokens and full attention for a few."""

from functools import partial

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.window_sizes import growing_windows, numbers_per_layer, window_pattern
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.global_softmax import GlobalSoftmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.patterns.rows import Rows
from kinformer.nn.patterns.tokens import Tokens
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV


@member(
    cost="L * (window + marked)",
    recipe=Recipe(lr=5e-4),
    needs={"top": "depth>1", "dilation": "dilated>0", "dilated": "dilation>1"},
)
def longformer(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    window: int | tuple[int, ...] = 64,
    top: int | None = None,
    dilation: int | tuple[int, ...] = 1,
    dilated: int = 2,
    marked: int = 1,
    length: int = 1024,
    kinds: int = 1,
    vocab: int = 256,
    dropout: float = 0.0,
    hidden: int | None = None,
    mask: int | None = None,
    eps: float = 1e-12,
) -> MLM:
    """Longformer (Beltagy et al., 2020, arXiv:2004.05150): windows and a few global tokens.

    Global tokens read all tokens, and all tokens read them. Choose it over `bert` if only a few tokens must see the
    whole text. `longformer_lm` generates text. A training step (width 256, batch 1, on a CPU) takes less time than
    `bert`'s from about 1,600 tokens on. At 4,096 it is 1.8 times as fast (bench/README.md).

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    window: tokens read on either side, half of the paper's w; one number, or one for each layer from the bottom, small
        ones first as in the paper.
    top: window of the highest layer; the windows between grow geometrically from `window`.
    dilation: distance between the tokens of a window; one number, or one for each layer. 1 means no gaps; the paper's
        tables count the gaps, one less. The paper's encoder has no gaps, and its language model has some in upper
        layers.
    dilated: number of heads per layer with dilation; 2 in the paper.
    marked: number of first tokens of a row that are global. `Context(also=Marked(mask))` marks others in a batch.
        Global tokens read with separate projections, which start as copies of the local ones.
    length: longest row in tokens.
    kinds: number of segment types.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    hidden: width of the feed-forward layers; 4 d if None.
    mask: id of masked tokens, if it is one of the tokens, as in published vocabularies; `vocab` if None.
    eps: epsilon of the norms; published models have 1e-5.
    """
    check_at_least("marked", marked, 0)
    sizes, gaps = growing_windows(window, top, depth, 0), numbers_per_layer("dilation", dilation, depth, 1)

    def block(size: int, gap: int) -> PostNorm:
        pattern = window_pattern(size, gap, heads, dilated) | Tokens(marked)
        attention = Attention(QKV(d, heads, head_dim=head_dim), GlobalSoftmax(pattern, Rows(marked), dropout=dropout))
        return PostNorm(attention, MLP(d, hidden), norm=partial(LayerNorm, eps=eps), dropout=dropout)

    body = Stack([block(size, gap) for size, gap in zip(sizes, gaps, strict=True)])
    return MLM(vocab, d, body, position=Learned(d, length), kinds=kinds, eps=eps, dropout=dropout, mask=mask)


EXAMPLES = (
    lambda: longformer(d=16, depth=2, heads=2, window=3, marked=1, length=64, vocab=11),
    lambda: longformer(d=16, depth=2, heads=2, window=2, dilation=2, dilated=1, marked=0, length=64, vocab=11),
    lambda: longformer(d=16, depth=2, heads=2, window=(1, 3), dilation=(1, 2), dilated=1, length=64, vocab=11),
    lambda: longformer(d=16, depth=2, heads=2, window=1, top=4, length=64, hidden=24, mask=3, eps=1e-5, vocab=11),
)
