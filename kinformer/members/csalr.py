"""CSALR: compressed self-attention with a low-rank approximation, as a text encoder."""

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.nystrom import NystromIdentity
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV


@member(cost="L**2 / size + (L / size)**3")
def csalr(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    size: int = 8,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM:
    """CSALR (Chen et al., 2020, IJCAI): attention through pooled tokens, joined by the inverse of A + I.

    y = softmax(Q K~^T / sqrt(d)) (A + I)^-1 softmax(Q~ K^T / sqrt(d)) V, A = softmax(Q~ K~^T / sqrt(d))

    Q~ and K~ are the landmarks, means of queries and of keys. Choose it over `nystromformer` to avoid an iteration for
    the inverse. It does not estimate softmax attention: its weights sum to 1/2, not to 1. A training step (width 256,
    batch 1, on a CPU) is faster than `bert`'s already at 1,024 tokens, and 2.7 times as fast at 4,096
    (bench/README.md).

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    size: number of tokens in each landmark, which is their strided mean.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and sublayer outputs.

    Differences: the paper's model learns vectors of pictures (metric learning), with this attention in a convolutional
    network. This member has pre-norm blocks and learned positions, and trains on the prediction of masked tokens.

    Source: Chen et al., 2020, doi:10.24963/ijcai.2020/285.
    """

    def block() -> PreNorm:
        return PreNorm(Attention(QKV(d, heads, head_dim=head_dim), NystromIdentity(size)), MLP(d), dropout=dropout)

    body = Stack([block() for _ in range(check_at_least("depth", depth, 1))], LayerNorm(d))
    return MLM(vocab, d, body, position=Learned(d, length), dropout=dropout)


EXAMPLES = (lambda: csalr(d=16, depth=1, heads=2, size=2, length=64, vocab=11),)
