"""Longformer: an encoder of long texts, with a window for most tokens and all of the text for a few."""

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

EPS = 1e-12


@member(recipe=Recipe(lr=5e-4), needs={"top": "depth>1", "dilation": "dilated>0", "dilated": "dilation>1"})
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
) -> MLM:
    """Longformer (Beltagy et al., 2020, arXiv:2004.05150): a window, and a few tokens that see and are seen by all.

    Choose it over `bert` where a few tokens must see all of a text and the others little of it; `longformer_lm` writes.
    A step of training (width 256, batch 1, on a CPU) takes less time than `bert`'s from about 1,600 tokens on, at 4,096
    1.8 times as fast (bench/README.md).

    d: width of a token.
    depth: layers.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    window: how many tokens each reads on either side (half of the paper's w): one number, or one for each layer from
        the bottom, small ones first as in the paper.
    top: the window of the highest layer; those between grow geometrically from `window`.
    dilation: the distance between the tokens of a window, one number or one for each layer; 1 is none (the paper's
        tables count the gaps, one less). The paper's encoder has none, its language model some in upper layers.
    dilated: how many heads of a layer have it; the paper's two.
    marked: the first tokens of a row, which are global; any others of a batch are by `Context(also=Marked(mask))`. They
        read with projections of their own, which start as copies of the local ones.
    length: the longest row.
    kinds: how many kinds of segments are told apart.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    check_at_least("marked", marked, 0)
    sizes, gaps = growing_windows(window, top, depth, 0), numbers_per_layer("dilation", dilation, depth, 1)

    def block(size: int, gap: int) -> PostNorm:
        pattern = window_pattern(size, gap, heads, dilated) | Tokens(marked)
        attention = Attention(QKV(d, heads, head_dim=head_dim), GlobalSoftmax(pattern, Rows(marked), dropout=dropout))
        return PostNorm(attention, MLP(d), norm=partial(LayerNorm, eps=EPS), dropout=dropout)

    body = Stack([block(size, gap) for size, gap in zip(sizes, gaps, strict=True)])
    return MLM(vocab, d, body, position=Learned(d, length), kinds=kinds, eps=EPS, dropout=dropout)


EXAMPLES = (
    lambda: longformer(d=16, depth=2, heads=2, window=3, marked=1, length=64, vocab=11),
    lambda: longformer(d=16, depth=2, heads=2, window=2, dilation=2, dilated=1, marked=0, length=64, vocab=11),
    lambda: longformer(d=16, depth=2, heads=2, window=(1, 3), dilation=(1, 2), dilated=1, length=64, vocab=11),
    lambda: longformer(d=16, depth=2, heads=2, window=1, top=4, length=64, vocab=11),
)
