"""Sinkhorn Transformer: blocks that read themselves and what a learned sort of blocks puts beside them."""

from kinformer.core.checks import check_at_least, resolve_head_dim
from kinformer.core.discover import member
from kinformer.members.support.sinkhorn_blocks import Net, sort_net, sorting_block
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.sinkhorn import Pool, Sinkhorn, Together
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned


@member
def sinkhorn_transformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    block: int = 32,
    net: Net = "blocks",
    iterations: int = 7,
    temperature: float = 0.75,
    noise: bool = True,
    pool: Pool = "sum",
    softmax: Together = "joint",
    mixture: bool = False,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Sinkhorn Transformer (Tay et al., 2020, arXiv:2002.11296): a block reads itself and a mixture of earlier blocks.

    Choose it for long rows in which a block needs one other block, found by a sort that the gradient learns; over
    `reformer` and `routing_transformer` where the choice should be soft. Pre-norm, learned positions.
    `sinkhorn_encoder` fills in hidden tokens. A step of training (width 256, batch 1, on a CPU) is faster than `gpt`'s
    from about 2,900 tokens on, at 16,384 2.4 times as fast (bench/README.md).

    d: the width.
    depth: layers.
    heads: heads of attention; each sorts for itself.
    head_dim: the width of a head; d / heads unless given.
    block: tokens of a block; the square root of the length costs least.
    net: what sorts: "blocks", the paper's network of a logit for each of the row's blocks, "pairs" a product of what
        is pooled of two blocks, as in the published PyTorch package, for any number of blocks.
    iterations: of causal balancing; 0 is a softmax over earlier blocks, the package's causal form.
    temperature: of the sort; the lower, the harder.
    noise: Gumbel noise on the sort in training.
    pool: what is known of a block: the "sum" of its tokens, the paper's, or their "mean".
    softmax: "joint" over both blocks, as in the package; "apart": one for each, added, as in the first author's code.
    mixture: adds what dense attention reads, the paper's mixture, at its cost.
    length: the longest row.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    width = resolve_head_dim(d, heads, head_dim)

    def mechanism(n: int) -> Sinkhorn:
        return Sinkhorn(
            block,
            sort_net(net, width, block, length),
            iterations=iterations,
            temperature=temperature,
            noise=noise,
            pool=pool,
            softmax=softmax,
            mixture=mixture,
            dropout=dropout,
            seed=n,
        )

    blocks = [
        sorting_block(d, heads, head_dim, mechanism(n), dropout) for n in range(check_at_least("depth", depth, 1))
    ]
    return LM(vocab, d, Stack(blocks, LayerNorm(d)), position=Learned(d, length), std=tied_start(d), dropout=dropout)


EXAMPLES = (
    lambda: sinkhorn_transformer(d=16, depth=2, heads=2, block=4, length=64, vocab=11),
    lambda: sinkhorn_transformer(
        d=16,
        depth=1,
        heads=2,
        block=4,
        net="pairs",
        noise=False,
        pool="mean",
        softmax="apart",
        mixture=True,
        length=64,
        vocab=11,
    ),
)
