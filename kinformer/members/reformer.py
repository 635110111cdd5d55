"""Reformer: attention within buckets of like tokens, in layers that keep no activations."""

from kinformer.attention import Attention
from kinformer.core.example import Example
from kinformer.core.mechanism import Mechanism
from kinformer.depth.reversible import Coupled, Reversible
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.lsh import LSH
from kinformer.mechanisms.lsh_published import PublishedLSH
from kinformer.mechanisms.softmax import Softmax
from kinformer.models.lm import LM
from kinformer.norms.layer import LayerNorm
from kinformer.patterns.block import Block
from kinformer.patterns.causal import Causal
from kinformer.positions.learned import Learned
from kinformer.projections.qkv import QKV
from kinformer.projections.shared_qk import SharedQK


@member
def reformer(
    d: int = 128, depth: int = 4, heads: int = 4, buckets: int = 16, rounds: int = 2, local: int = 64,
    chunk: int | None = None, length: int = 1024, vocab: int = 256, tie: bool = True, dropout: float = 0.0,
    scale: float = 1.0
) -> LM:
    """Reformer (Kitaev et al., 2020, arXiv:2001.04451): LSH attention with shared queries and keys, reversible layers.

    Choose it for deep models and long rows: training keeps no activations. Even blocks read their block of `local`
    positions and the one before it, odd blocks what hashes put into their own buckets.

    d: the width of each of the stream's two halves; the paper starts both as the same, here each has its own.
    depth: blocks.
    heads: heads of attention.
    buckets: buckets of a round, an even number.
    rounds: how often is hashed; a trained model may be evaluated with more (`mechanism.rounds`).
    local: positions of a block of the even blocks.
    chunk: cuts the sorted list as published, which bounds the cost where buckets are uneven but lets later tokens move
        the cuts; whole buckets unless given.
    length: the longest row it can read.
    vocab: tokens there are.
    tie: False gives the head a matrix of its own.
    dropout: the share of numbers dropped in training.
    scale: the factor of q.k in the odd blocks, whose keys have length 1: 1 in the authors' code.
    """

    def lsh(seed: int) -> Mechanism:
        if chunk is None:
            return LSH(heads, d // heads, buckets, rounds, scale=scale, seed=seed)
        return PublishedLSH(heads, d // heads, buckets, chunk, rounds, scale=scale, seed=seed)

    def attention(n: int) -> Attention:
        if n % 2:
            return Attention(SharedQK(d, heads, bias=False), lsh(n))
        return Attention(QKV(d, heads, bias=False), Softmax(Causal() & Block(local, back=1), lse=False))

    def block(n: int) -> Coupled:
        return Coupled(attention(n), MLP(d, activation="relu", dropout=dropout), dropout=dropout)

    body = Reversible([block(n) for n in range(depth)], LayerNorm(2 * d))
    return LM(vocab, 2 * d, body, position=Learned(2 * d, length), tie=tie, dropout=dropout)


EXAMPLES = (
    Example(
        lambda: reformer(d=16, depth=2, heads=2, buckets=4, local=4, length=64, vocab=11),
        breaks={"compiles": "its reversible layers are computed again in the backward, which is no one graph"},
    ),
)
