"""Longformer's language model: windows that grow with the layers, and optional gaps in some heads."""

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


@member(cost="L * (window + top)", needs={"top": "depth>1", "dilation": "dilated>0", "dilated": "dilation>1"})
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
    """Longformer's language model (Beltagy et al., 2020, arXiv:2004.05150, section 4).

    It has causal windows and no global tokens. Choose it over `gpt` if the decoding cache must not grow with the row.
    Each layer reads a window, small at the bottom, and the windows of all layers add up. Blocks are pre-norm. Positions
    are relative as in Transformer-XL, so rows may have any length. A training step (width 256, batch 1, on a CPU) is
    faster than `gpt`'s from about 1,400 tokens on, and 4.0 times as fast at 16,384 (bench/README.md).

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    window: tokens read, the token itself included, i - window < j <= i; one number, or one for each layer from the
        bottom.
    top: window of the highest layer; the windows between grow geometrically from `window`. The paper's first phase goes
        from 32 to 8,192, and growing windows were best; top=none has no growth. `kinformer train ... --then
        steps=50000` adds the later phases: each doubles the rows and `window`, at most to `top`, and halves the
        learning rate.
    dilation: distance between the tokens of a window; one number, or one for each layer. 1 means no gaps. The paper
        counts gaps: its twelve layers have 0, 1, 2, 3 on layers 0-5, 6-7, 8-9, 10-11, which are 1, 2, 3, 4 here.
    dilated: number of heads per layer with dilation; 2 in the paper.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
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
