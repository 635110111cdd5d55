"""Linformer: BERT whose keys and values are projected along the row to a few."""

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


@member(recipe=Recipe(lr=5e-4), needs={"sharing": "projection=linear|convolution"})
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
    """Linformer (Wang et al., 2020, arXiv:2006.04768): every token reads `k` mixtures of all keys and values of a row.

    Choose it over `bert` for rows that are long and all about as long: attention costs length x k in place of its
    square. An encoder, trained by hiding tokens: a mixture is of the whole row, so nothing of it writes. `bert`
    otherwise: post-norm, learned positions. A step of training (width 256, batch 1, on a CPU) is faster than `bert`'s
    at 1,024 tokens already, at 4,096 2.8 times as fast (bench/README.md).

    d: width of a token.
    depth: layers.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    k: mixtures of a row: one number, or one for each layer from the bottom, the paper's higher ones smaller.
    sharing: who shares matrices of length x k: "none", a pair for each head; "headwise", the heads of a layer a pair;
        "key-value", the heads one for keys and values; "layerwise", all layers that one. Kernels are shared likewise.
    projection: "linear" matrices along the row; or each length / k tokens that follow one another become one, by their
        "mean", "max" or a "convolution".
    length: the longest row. A shorter one meets the first columns of the matrices.
    kinds: how many kinds of segments are told apart.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    sizes, width = numbers_per_layer("k", k, depth, 1), resolve_head_dim(d, heads, head_dim)
    check_option("sharing", sharing, Sharing)
    check_option("projection", projection, Along)
    if sharing == "layerwise" and len(set(sizes)) > 1:
        raise ValueError(f"sharing='layerwise' is one matrix for all layers, and k={k} names others; give one k")

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
        {"learns": "the largest numbers of several keys part them late: 0.86 of places after the law's 800 steps"},
    ),
)
