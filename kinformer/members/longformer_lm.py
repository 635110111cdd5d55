"""Longformer's language model: windows that grow with the layers, some heads of the upper ones with gaps."""

from kinformer.core.checks import resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.members.support.window_sizes import growing_windows, numbers_per_layer, window_pattern
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.biases.transformer_xl import TransformerXL
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.projections.qkv import QKV


@member(needs={"top": "depth>1", "dilation": "dilated>0", "dilated": "dilation>1"})
def longformer_lm(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    window: int | tuple[int, ...] = 16,
    top: int | None = 128,
    dilation: int | tuple[int, ...] = 1,
    dilated: int = 2,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Longformer's language model (Beltagy et al., 2020, arXiv:2004.05150, section 4): causal windows, nothing global.

    Choose it over `gpt` where the cache of decoding must not grow with the row: each layer reads a window, small ones
    at the bottom, and the windows of all layers add up. Pre-norm; relative positions of Transformer-XL, so any length.
    A step of training (width 256, batch 1, on a CPU) is faster than `gpt`'s from about 1,400 tokens on, at 16,384 4.0
    times as fast (bench/README.md).

    d: width of a token.
    depth: layers.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    window: how many tokens each reads, itself included, i - window < j <= i: one number, or one for each layer from the
        bottom.
    top: the window of the highest layer; those between grow geometrically from `window`. The paper's first phase goes
        from 32 to 8,192, and a window that grows was best (none grows with top=none). Its later phases are
        `kinformer train ... --then steps=50000` doubles the rows and `window`, at most to `top`, and halves the rate.
    dilation: the distance between the tokens of a window, one number or one for each layer; 1 is none. The paper's
        twelve layers count gaps of 0, 1, 2, 3 on layers 0-5, 6-7, 8-9, 10-11: 1, 2, 3, 4 here.
    dilated: how many heads of a layer have it; the paper's two.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    width = resolve_head_dim(d, heads, head_dim)
    sizes, gaps = growing_windows(window, top, depth, 1), numbers_per_layer("dilation", dilation, depth, 1)

    def block(size: int, gap: int) -> PreNorm:
        pattern: Pattern = Causal() & window_pattern(size - 1, gap, heads, dilated)
        projection = QKV(d, heads, head_dim=head_dim)
        attention = Attention(projection, Softmax(pattern, TransformerXL(heads, width, d), dropout=dropout))
        return PreNorm(attention, MLP(d), dropout=dropout)

    body = Stack([block(size, gap) for size, gap in zip(sizes, gaps, strict=True)], LayerNorm(d))
    return LM(vocab, d, body, std=tied_start(d), dropout=dropout)


EXAMPLES = (
    lambda: longformer_lm(d=16, depth=2, heads=2, window=3, top=None, dilation=2, dilated=1, vocab=11),
    lambda: longformer_lm(d=16, depth=2, heads=2, window=(2, 3), top=None, dilation=(1, 2), dilated=1, vocab=11),
    lambda: longformer_lm(d=16, depth=2, heads=2, window=2, top=4, vocab=11),
)
