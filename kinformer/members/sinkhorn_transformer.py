"""Sinkhorn Transformer: blocks that read themselves and what a learned sort of blocks puts beside them."""

from typing import Literal

from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.checks import at_least, head_width, one_of
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.sinkhorn import Pool, Sinkhorn
from kinformer.mechanisms.support.sorting import BlockNet, PairNet, SortNet
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.norms.layer import LayerNorm
from kinformer.positions.learned import Learned
from kinformer.projections.qkv import QKV

Net = Literal["blocks", "pairs"]


@member
def sinkhorn_transformer(
    d: int = 128, depth: int = 5, heads: int = 4, block: int = 32, net: Net = "blocks", iterations: int = 7,
    temperature: float = 0.75, noise: bool = True, pool: Pool = "sum", mixture: bool = False, length: int = 1024,
    vocab: int = 256, dropout: float = 0.0
) -> LM:
    """Sinkhorn Transformer (Tay et al., 2020, arXiv:2002.11296): a block reads itself and a mixture of earlier blocks.

    Choose it for long rows in which a block needs one other block, found by a sort that the gradient learns; over
    `reformer` and `routing_transformer` where the choice should be soft. Pre-norm, learned positions.
    `sinkhorn_encoder` fills in hidden tokens.

    d: the width.
    depth: layers.
    heads: heads of attention; each sorts for itself.
    block: tokens of a block; the square root of the length costs least.
    net: what sorts: "blocks", the paper's network of a logit for each of the row's blocks, "pairs" a product of what
        is pooled of two blocks, as in the published PyTorch package, for any number of blocks.
    iterations: of causal balancing; 0 is a softmax over earlier blocks, the package's causal form.
    temperature: of the sort; the lower, the harder.
    noise: Gumbel noise on the sort in training.
    pool: what is known of a block: the "sum" of its tokens, the paper's, or their "mean".
    mixture: adds what dense attention reads, the paper's mixture, at its cost.
    length: the longest row.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """

    def mechanism(n: int) -> Sinkhorn:
        return Sinkhorn(
            block, _net(net, d, heads, block, length), iterations=iterations, temperature=temperature, noise=noise,
            pool=pool, mixture=mixture, dropout=dropout, seed=n
        )

    blocks = [_block(d, heads, mechanism(n), dropout) for n in range(at_least("depth", depth, 1))]
    return LM(vocab, d, Stack(blocks, LayerNorm(d)), position=Learned(d, length), std=tied_start(d), dropout=dropout)


@member
def sinkhorn_encoder(
    d: int = 128, depth: int = 5, heads: int = 4, block: int = 32, net: Net = "blocks", iterations: int = 7,
    temperature: float = 0.75, noise: bool = True, pool: Pool = "sum", mixture: bool = False, cut: int | None = None,
    near: bool = False, length: int = 1024, vocab: int = 256, dropout: float = 0.0
) -> MLM:
    """Sinkhorn Transformer as an encoder (Tay et al., 2020, arXiv:2002.11296): blocks sorted over the whole row.

    Choose it over `longformer` where what a block needs may stand anywhere; with `cut` at a cost linear in the row.
    Trained by hiding tokens.

    cut: SortCut: every token reads this many blocks of the sorted row and nothing else; none unless given.
    near: with a cut, a token reads its own block too, as in the published PyTorch package.

    Others: those of `sinkhorn_transformer`.
    """

    def mechanism(n: int) -> Sinkhorn:
        return Sinkhorn(
            block, _net(net, d, heads, block, length), causal=False, iterations=iterations, temperature=temperature,
            noise=noise, pool=pool, cut=cut, near=near, mixture=mixture, dropout=dropout, seed=n
        )

    blocks = [_block(d, heads, mechanism(n), dropout) for n in range(at_least("depth", depth, 1))]
    return MLM(vocab, d, Stack(blocks, LayerNorm(d)), position=Learned(d, length), dropout=dropout)


def _net(net: Net, d: int, heads: int, block: int, length: int) -> SortNet:
    width = head_width(d, heads)
    if one_of("net", net, Net) == "pairs":
        return PairNet(width)
    return BlockNet(width, -(-at_least("length", length, 1) // at_least("block", block, 1)))


def _block(d: int, heads: int, mechanism: Sinkhorn, dropout: float) -> PreNorm:
    return PreNorm(Attention(QKV(d, heads), mechanism), MLP(d), dropout=dropout)


EXAMPLES = (
    lambda: sinkhorn_transformer(d=16, depth=2, heads=2, block=4, length=64, vocab=11),
    lambda: sinkhorn_encoder(d=16, depth=1, heads=2, block=4, net="pairs", pool="mean", length=64, vocab=11),
    lambda: sinkhorn_encoder(d=16, depth=1, heads=2, block=4, cut=2, length=64, vocab=11),
)
