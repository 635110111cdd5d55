"""Nystromformer: BERT whose attention goes through landmarks."""

from functools import partial
from typing import Literal

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.training_recipe import Recipe
from kinformer.models.mlm import MLM
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

EPS = 1e-5
FORMS: dict[str, tuple[type[Nystrom], Norms]] = {"paper": (Nystrom, "head"), "published": (PublishedNystrom, "batch")}


@member(recipe=Recipe(lr=5e-4))
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
) -> MLM:
    """Nystromformer (Xiong et al., 2021, arXiv:2102.03902): every token reads every token through a few landmarks.

    y = softmax(Q K~^T / sqrt(d)) A^+ softmax(Q~ K^T / sqrt(d)) V + conv(V), A = softmax(Q~ K~^T / sqrt(d))

    Choose it over `bert` for rows much longer than `landmarks`: its cost is linear in the row. Post-norm and learned
    positions, as in BERT. Trained by hiding tokens. A step of training (width 256, batch 1, on a CPU) is faster than
    `bert`'s from about 1,300 tokens on, at 4,096 2.2 times as fast (bench/README.md).

    d: width of a token.
    depth: layers.
    heads: heads of attention.
    head_dim: the width of a head; d / heads unless given.
    landmarks: means of a row's tokens that stand for the others; published models have 64. Rows of so many tokens or
        fewer are read exactly.
    conv: tokens that the convolution of values reads, an odd number, its own in the middle; none for no convolution.
        Published models take 65.
    iterations: of the pseudo-inverse.
    norms: it starts from each "head"'s own norms, as in the paper, or from the largest of the "batch", as in the
        authors' code, so that a row is read otherwise beside other rows. "head" unless given, with form=published
        "batch".
    form: "paper": landmarks are of a row's own tokens. "published", as in the authors' code: of the columns of a batch,
        padding counted in (`PublishedNystrom`).
    length: the longest row it can read.
    kinds: how many kinds of segments are told apart.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training, none of them attention weights, as in the authors' code.
    """

    def block() -> PostNorm:
        skip = None if conv is None else ValueConv(heads, check_odd("conv", conv))
        kind, usual = FORMS[check_option("form", form, FORMS)]
        mechanism = kind(landmarks, iterations=iterations, norms=norms or usual, skip=skip)
        projection = QKV(d, heads, head_dim=head_dim)
        return PostNorm(Attention(projection, mechanism), MLP(d), norm=partial(LayerNorm, eps=EPS), dropout=dropout)

    body = Stack([block() for _ in range(check_at_least("depth", depth, 1))])
    return MLM(vocab, d, body, position=Learned(d, length), kinds=kinds, eps=EPS, dropout=dropout)


PADDED = {"padding": "columns of padding are counted into the means of landmarks, as in the authors' code"}
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
)
