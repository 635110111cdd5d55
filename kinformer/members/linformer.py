"""Linformer: BERT with keys and values that are projected along the row to a few."""

from functools import partial
from typing import Literal

from kinformer.core.checks import check_multiple, check_option, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.patterns.full import Full
from kinformer.core.shorten import Shorten
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.window_sizes import numbers_per_layer
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.shorteners.conv_shortener import ConvShortener
from kinformer.nn.shorteners.linformer import Linformer
from kinformer.nn.shorteners.max_pooled import MaxPooled
from kinformer.nn.shorteners.mean_pooled import MeanPooled

EPS = 1e-12
Along = Literal["linear", "mean", "max", "convolution"]
Sharing = Literal["none", "headwise", "key-value", "layerwise"]


@member(cost="L * k", recipe=Recipe(lr=5e-4), needs={"sharing": "projection=linear|convolution"})
def linformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    k: int | tuple[int, ...] = 64,
    sharing: Sharing = "headwise",
    projection: Along = "linear",
    length: int = 1024,
    kinds: int = 2,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM:
    """Linformer (Wang et al., 2020, arXiv:2006.04768): attention to `k` mixtures of the keys and values.

    Choose it over `bert` for long rows of similar length: attention costs length x k in place of length^2. It is an
    encoder and trains on the prediction of masked tokens. It cannot be a decoder, because each mixture contains the
    whole row. Otherwise it is like `bert`: post-norm with learned positions. A training step (width 256, batch 1, on a
    CPU) is faster than `bert`'s already at 1,024 tokens, and 2.8 times as fast at 4,096 (bench/README.md).

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    k: mixtures per row; one number, or one for each layer from the bottom. The paper's higher layers have fewer.
    sharing: sharing of the length x k matrices. With "none" each head has two. With "headwise" the heads of a layer
        share two. With "key-value" they share one for keys and values. With "layerwise" all layers share that one.
        Convolution kernels are shared likewise.
    projection: "linear" has matrices along the row. "mean", "max" and "convolution" reduce each group of length / k
        consecutive tokens to one.
    length: longest row in tokens; a shorter row uses the first columns of the matrices.
    kinds: number of segment types.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    """
    sizes, width = numbers_per_layer("k", k, depth, 1), resolve_head_dim(d, heads, head_dim)
    check_option("sharing", sharing, Sharing)
    check_option("projection", projection, Along)
    if sharing == "layerwise" and len(set(sizes)) > 1:
        raise ValueError(
            f"sharing='layerwise' uses one matrix for all layers: got k={k}, expected equal numbers. Give one k"
        )

    def shorten(size: int) -> Shorten:
        own_heads, tied = heads if sharing == "none" else None, sharing in ("key-value", "layerwise")
        if projection == "linear":
            return Linformer(length, size, heads=own_heads, tied=tied)
        group = check_multiple("length", length, "k", size) // size
        if projection == "convolution":
            return ConvShortener(group, width, heads=own_heads, tied=tied)
        return MeanPooled(group) if projection == "mean" else MaxPooled(group)

    shared = shorten(sizes[0]) if sharing == "layerwise" else None

    def block(size: int) -> PostNorm:
        mechanism = Shortened(Softmax(Full(), dropout=dropout, lse=False), shared or shorten(size))
        projection = QKV(d, heads, head_dim=head_dim)
        return PostNorm(Attention(projection, mechanism), MLP(d), norm=partial(LayerNorm, eps=EPS), dropout=dropout)

    body = Stack([block(size) for size in sizes])
    return MLM(vocab, d, body, position=Learned(d, length), kinds=kinds, eps=EPS, dropout=dropout)


EXAMPLES = (
    Example(
        lambda: linformer(d=16, depth=2, heads=2, k=16, sharing="layerwise", length=64, vocab=11),
        shares={"*.shorten.along.k": "sharing=layerwise: one matrix shortens keys and values of all layers"},
    ),
    lambda: linformer(d=16, depth=2, heads=2, k=8, sharing="none", length=64, vocab=11),
    lambda: linformer(d=16, depth=1, heads=2, k=16, projection="convolution", length=64, vocab=11),
    lambda: linformer(d=16, depth=2, heads=2, k=(16, 8), sharing="key-value", length=64, vocab=11),
    lambda: linformer(d=16, depth=1, heads=2, k=16, projection="mean", length=64, vocab=11),
    Example(
        lambda: linformer(d=16, depth=1, heads=2, k=16, projection="max", length=64, vocab=11),
        {"learns": "maxima over several keys separate them late: accuracy 0.86 after the law's 800 steps"},
    ),
)
