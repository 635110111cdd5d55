"""LazyFormer: every second block reuses the attention weights of the block below."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.discover import member
from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.lending import Lending
from kinformer.nn.mechanisms.reused import Reused
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.value_projection import ValueProjection

Form = Literal["encoder", "decoder"]


@member(cost="L**2", needs={"every": "depth>1"})
def lazyformer(
    d: int = 128,
    depth: int = 6,
    heads: int = 4,
    head_dim: int | None = None,
    every: int = 2,
    form: Form = "encoder",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
) -> MLM | LM:
    """LazyFormer (Ying et al., 2021, arXiv:2102.12702): `every` blocks share one set of attention weights.

    The first of each `every` blocks computes the weights. The other blocks have no queries and no keys. Choose it over
    `bert` for fewer parameters, and over `gpt` for a smaller cache. Otherwise it is like these two: it has pre-norm
    blocks and learned positions. The paper uses the saved time for a larger `d`.

    d: model width.
    depth: number of blocks; if it is no multiple of `every`, the last group of blocks is shorter.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    every: number of consecutive blocks that share weights, the paper's m, which is 2 there; 1 shares none.
    form: "encoder" predicts masked tokens, like the paper's BERT. "decoder" generates text, which the paper does not
        try; the blocks without queries then cache only values.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and sublayer outputs.
    attention_dropout: dropout probability of attention weights, drawn again in each block; the paper advises 0.

    Costs: a block that reuses weights saves queries and keys, 2 of the 12 d^2 multiplications of a block per token. A
    block without queries and keys calls a fused attention kernel with the queries and keys of the block below. This is
    faster than storing L^2 weights per head and multiplying values by them. With 12 blocks of width 256, every=2 takes
    0.92, 0.94 and 0.96 of the multiplications of every=1 in rows of 128, 512 and 2,048 tokens, forward and backward.
    Its time falls as much (bench/lazy.py).

    Differences: the paper's factor of 1.3 compares with blocks that each store a matrix of weights. `bert` here stores
    none.
    """
    causal, every = check_option("form", form, Form) == "decoder", check_at_least("every", every, 1)
    pattern = Causal() if causal else Full()

    def block(n: int) -> PreNorm:
        mechanism: Mechanism
        if n % every:
            attention = Attention(ValueProjection(d, heads, v_dim=head_dim), Reused(pattern, dropout=attention_dropout))
        elif every == 1 or n + 1 == depth:  # no other block reuses its weights
            mechanism = Softmax(pattern, dropout=attention_dropout, lse=False)
            attention = Attention(QKV(d, heads, head_dim=head_dim), mechanism)
        else:
            mechanism = Lending(pattern, dropout=attention_dropout, lse=False)
            attention = Attention(QKV(d, heads, head_dim=head_dim), mechanism)
        return PreNorm(attention, MLP(d), dropout=dropout)

    body = Stack([block(n) for n in range(check_at_least("depth", depth, 1))], LayerNorm(d))
    if causal:
        return LM(vocab, d, body, position=Learned(d, length), std=tied_start(d), dropout=dropout)
    return MLM(vocab, d, body, position=Learned(d, length), dropout=dropout)


EXAMPLES = (
    lambda: lazyformer(d=16, depth=3, heads=2, form="decoder", length=64, vocab=11),
    lambda: lazyformer(d=16, depth=3, heads=2, every=3, length=64, vocab=11),
    lambda: lazyformer(d=16, depth=2, heads=2, attention_dropout=0.1, length=64, vocab=11),
)
