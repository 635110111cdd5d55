"""Longformer: an encoder of long texts, with a window for most tokens and all of the text for a few."""

from functools import partial

from kinformer.attention import Attention
from kinformer.blocks.post_norm import PostNorm
from kinformer.core.checks import at_least
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.global_softmax import GlobalSoftmax
from kinformer.models.mlm import MLM
from kinformer.norms.layer import LayerNorm
from kinformer.patterns.band import Band
from kinformer.patterns.rows import Rows
from kinformer.patterns.tokens import Tokens
from kinformer.positions.learned import Learned
from kinformer.projections.qkv import QKV

EPS = 1e-12


@member
def longformer(
    d: int = 128, depth: int = 4, heads: int = 4, window: int | tuple[int, ...] = 64, marked: int = 1,
    length: int = 1024, kinds: int = 1, vocab: int = 256, dropout: float = 0.0
) -> MLM:
    """Longformer (Beltagy et al., 2020, arXiv:2004.05150): a window, and a few tokens that see and are seen by all.

    Choose it over `bert` where a few tokens must see all of a text and the others little of it. `window` is how many
    tokens each reads on either side: one number, or one for each layer, small ones first as in the paper. The first
    `marked` tokens of a row are global, and any others of a batch are with `Context(also=Marked(mask))`; they read with
    projections of their own, which start as copies of the local ones. `length` is the longest row.
    """
    at_least("marked", marked, 0)
    windows = (window,) * depth if isinstance(window, int) else window
    if len(windows) != depth:
        raise ValueError(f"window={window} has {len(windows)} numbers for depth={depth} layers; give one, or one each")

    def block(size: int) -> PostNorm:
        mechanism = GlobalSoftmax(Band(size) | Tokens(marked), Rows(marked), dropout=dropout)
        attention = Attention(QKV(d, heads), mechanism)
        return PostNorm(attention, MLP(d), norm=partial(LayerNorm, eps=EPS), dropout=dropout)

    body = Stack([block(size) for size in windows])
    return MLM(vocab, d, body, position=Learned(d, length), kinds=kinds, eps=EPS, dropout=dropout)


EXAMPLES = (
    lambda: longformer(d=16, depth=2, heads=2, window=3, marked=1, length=64, vocab=11),
    lambda: longformer(d=16, depth=2, heads=2, window=2, marked=0, length=64, vocab=11),
)
