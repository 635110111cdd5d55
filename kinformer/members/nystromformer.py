"""Nystromformer: BERT with attention through landmarks."""

from functools import partial
from typing import Any, Literal

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.training_recipe import Recipe
from kinformer.models.mlm import GELU, MLM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.nystrom import ACROSS_ROWS, Norms, Nystrom
from kinformer.nn.mechanisms.nystrom_published import PublishedNystrom
from kinformer.nn.mechanisms.value_conv import ValueConv, check_odd
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV

FORMS: dict[str, tuple[type[Nystrom], Norms]] = {"paper": (Nystrom, "head"), "published": (PublishedNystrom, "batch")}


@member(cost="L * (landmarks + conv) + landmarks**3 * iterations", recipe=Recipe(lr=5e-4))
def nystromformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    landmarks: int = 32,
    conv: int | None = 33,
    iterations: int = 6,
    norms: Norms | None = None,
    form: Literal["paper", "published"] = "paper",
    length: int = 1024,
    kinds: int = 2,
    vocab: int = 256,
    dropout: float = 0.0,
    hidden: int | None = None,
    mask: int | None = None,
    eps: float = 1e-5,
    activation: GELU = "gelu",
) -> MLM:
    """Nystromformer (Xiong et al., 2021, arXiv:2102.03902): full attention through a few landmarks.

    y = softmax(Q K~^T / sqrt(d)) A^+ softmax(Q~ K^T / sqrt(d)) V + conv(V), A = softmax(Q~ K~^T / sqrt(d))

    Q~ and K~ are the landmarks, means of queries and of keys, and A^+ is the pseudo-inverse of A. Choose it over `bert`
    for rows much longer than `landmarks`: its cost is linear in the row. It has post-norm blocks and learned positions,
    as in BERT, and trains on the prediction of masked tokens. A training step (width 256, batch 1, on a CPU) is faster
    than `bert`'s from about 1,300 tokens on, and 2.2 times as fast at 4,096 (bench/README.md).

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    landmarks: number of means of a row's tokens that represent the others; 64 in published models. Attention is exact
        for rows of at most this length.
    conv: kernel size of the convolution of values, an odd number with the token in the middle; None for no convolution.
        Published models have 65.
    iterations: number of iterations of the pseudo-inverse.
    norms: norms of A that start the iteration of the pseudo-inverse: those for each "head", as in the paper, or the
        largest of the "batch", as in the authors' code. With "batch" the result for a row depends on the other rows.
        The default is "head", and "batch" if form="published".
    form: "paper": landmarks are means of a row's own tokens. "published", as in the authors' code: they are means over
        token places of the rows, padding included (`PublishedNystrom`).
    length: longest row in tokens.
    kinds: number of segment types.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and sublayer outputs; attention weights have none, as in the authors'
        code.
    hidden: width of the feed-forward layers; 4 d if None.
    mask: id of masked tokens, if it is one of the tokens, as in published vocabularies; `vocab` if None.
    eps: epsilon of the norms.
    activation: nonlinearity of the feed-forward layers and of the head; "gelu_tanh" in published models.
    """

    def block() -> PostNorm:
        skip = None if conv is None else ValueConv(heads, check_odd("conv", conv))
        kind, usual = FORMS[check_option("form", form, FORMS)]
        mechanism = kind(landmarks, iterations=iterations, norms=norms or usual, skip=skip)
        projection, mlp = QKV(d, heads, head_dim=head_dim), MLP(d, hidden, activation=activation)
        return PostNorm(Attention(projection, mechanism), mlp, norm=partial(LayerNorm, eps=eps), dropout=dropout)

    body = Stack([block() for _ in range(check_at_least("depth", depth, 1))])
    options: dict[str, Any] = {"eps": eps, "dropout": dropout, "mask": mask, "activation": activation}
    return MLM(vocab, d, body, position=Learned(d, length), kinds=kinds, **options)


PADDED = {"padding": "padding counts in the means of the landmarks, as in the authors' code"}
MATES = dict.fromkeys(("batch_mates", "shard"), ACROSS_ROWS)
EXAMPLES = (
    lambda: nystromformer(d=16, depth=1, heads=2, landmarks=4, conv=7, length=64, vocab=11),
    Example(
        lambda: nystromformer(
            d=16, depth=1, heads=2, landmarks=4, conv=None, norms="head", form="published", length=64, vocab=11
        ),
        breaks=PADDED,
    ),
    Example(
        lambda: nystromformer(d=16, depth=1, heads=2, landmarks=4, conv=7, norms="batch", length=64, vocab=11),
        breaks=MATES,
    ),
    lambda: nystromformer(
        d=16, depth=1, heads=2, landmarks=64, hidden=24, mask=3, eps=1e-2, activation="gelu_tanh", length=64, vocab=11
    ),
)
