"""Sinkhorn Transformer: blocks that read themselves and a block chosen by a learned sort."""

from kinformer.core.checks import check_at_least, resolve_head_dim
from kinformer.core.discover import member
from kinformer.members.support.sinkhorn_blocks import Net, sort_net, sorting_block
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.sinkhorn import Pool, Sinkhorn, Together
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned


@member(cost="L * block + L**2 / block + L * length / block**2")
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
    """Sinkhorn Transformer (Tay et al., 2020, arXiv:2002.11296): attention over sorted blocks.

    A block reads itself and a mixture of earlier blocks, which a differentiable sort selects. Choose it for long rows
    in which a block needs one other block. Choose it over `reformer` and `routing_transformer` if the choice should be
    soft. Blocks of layers are pre-norm with learned positions. `sinkhorn_encoder` predicts masked tokens. A training
    step (width 256, batch 1, on a CPU) is faster than `gpt`'s from about 2,900 tokens on, and 2.4 times as fast at
    16,384 (bench/README.md).

    d: model width.
    depth: number of layers.
    heads: number of attention heads; each has its own sort.
    head_dim: width of a head; d / heads if None.
    block: tokens in a block; the square root of the length costs least.
    net: network that sorts. With "blocks", as in the paper, it has a logit for each block of the row. With "pairs", as
        in the published PyTorch package, it multiplies the pooled vectors of two blocks, for any number of blocks.
    iterations: iterations of causal balancing; 0 is a softmax over earlier blocks, the causal form of that package.
    temperature: temperature of the sort; lower is harder.
    noise: add Gumbel noise to the sort during training.
    pool: vector of a block: the "sum" of its tokens, as in the paper, or their "mean".
    softmax: "joint" over both blocks, as in the package. "apart" adds one softmax for each, as in the first author's
        code.
    mixture: add the result of dense attention, the paper's mixture, at its cost.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
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
