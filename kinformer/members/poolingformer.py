"""Poolingformer: attention over a window and over pooled keys of a wider window."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_option, check_whole_between, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.training_recipe import Recipe
from kinformer.models.mlm import MLM
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.pooling_levels import PoolingLevels
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.pooling import Pooling
from kinformer.nn.positions.learned import Learned
from kinformer.nn.shorteners.windows import DynamicWindows, MaxWindows, MeanWindows, WindowShortener

Pool = Literal["mean", "max", "dynamic"]


@member(cost="L * (near + far / stride)", recipe=Recipe(lr=5e-4), needs={"head_dim": "shared=false"})
def poolingformer(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    near: int = 32,
    far: int = 128,
    kernel: int = 5,
    stride: int = 4,
    pool: Pool = "dynamic",
    shared: bool = False,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM:
    """Poolingformer (Zhang et al., 2021, arXiv:2105.04371): a window and a wider one of pooled keys.

    Choose it over `longformer` if distant tokens matter approximately and no token is known to be global. Its cost is
    also linear in the row. It trains on the prediction of masked tokens. A training step (width 256, batch 1, on a CPU)
    is faster than `bert`'s from about 2,300 tokens on, and 1.4 times as fast at 4,096 (bench/README.md).

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None. `shared` requires this width.
    near: tokens that the first level reads on either side, half of the paper's w1; 64 in the paper.
    far: reach of pooled keys on either side, half of the paper's w2; 256 in the paper.
    kernel: tokens per pooled key; 5 in the paper.
    stride: distance between the first tokens of consecutive kernels; 4 in the paper.
    pool: "mean", "max", or "dynamic" (LDConv, the paper's best): weights that the middle token of a kernel predicts.
    shared: the second level uses the projections of the first level.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    Differences: the paper starts from the weights of RoBERTa.
    """
    width = resolve_head_dim(d, heads, head_dim)
    # a kernel longer than the window would fit nowhere
    check_whole_between("kernel", kernel, 1, 2 * check_at_least("far", far, 0) + 1)

    def windows() -> WindowShortener:
        if check_option("pool", pool, Pool) == "dynamic":
            return DynamicWindows(kernel, heads, width, width)
        return MeanWindows(kernel) if pool == "mean" else MaxWindows(kernel)

    def block() -> PostNorm:
        pooling = Pooling(far, windows(), stride, dropout=dropout)
        attention = PoolingLevels(d, heads, near, pooling, head_dim=width, shared=shared, dropout=dropout)
        return PostNorm(attention, MLP(d), dropout=dropout)

    body = Stack([block() for _ in range(check_at_least("depth", depth, 1))])
    return MLM(vocab, d, body, position=Learned(d, length), dropout=dropout)


EXAMPLES = (
    lambda: poolingformer(d=16, depth=1, heads=2, near=1, far=4, kernel=3, stride=2, length=64, vocab=11),
    Example(
        lambda: poolingformer(d=16, depth=1, heads=2, near=2, far=4, pool="max", shared=True, length=64, vocab=11),
        shares={"*.projection.qkv.*": "shared=True: both levels have the same projection"},
    ),
    lambda: poolingformer(d=16, depth=1, heads=2, near=1, far=4, kernel=3, stride=2, pool="mean", length=64, vocab=11),
)
