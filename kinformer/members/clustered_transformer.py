"""Clustered Transformer: the encoder whose like queries read as one."""

from typing import Literal

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.mechanism import Mechanism
from kinformer.core.training_recipe import Recipe
from kinformer.members.bert import EPS
from kinformer.members.support.wiring import Norms, Wiring
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.nn.mechanisms.clustered_improved import ImprovedClustered
from kinformer.nn.mechanisms.hamming_kmeans import HammingKMeans
from kinformer.nn.projections.qkv import QKV

Form = Literal["improved", "plain"]
Added = Literal["learned", "sinusoidal", "tensor2tensor", "none"]  # the mean of several queries has no distance to a key
TOPK = 32  # as in the paper


@member(recipe=Recipe(lr=5e-4), needs={"topk": "form=improved", "length": "position=learned"})
def clustered_transformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    form: Form = "improved",
    clusters: int = 25,
    topk: int = TOPK,
    bits: int = 63,
    iterations: int = 10,
    hash_bias: bool = False,
    redraw: int | None = None,
    head_dim: int | None = None,
    position: Added = "learned",
    norm: Norms = "post",
    length: int = 1024,
    kinds: int = 2,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MLM:
    """Clustered attention (Vyas et al., 2020, arXiv:2007.04825) as an encoder: means of like queries read for them.

    y_i = m_j softmax over l in T_j of (q_i.k_l / sqrt(head_dim)) v_l + sum over l not in T_j of A^c_jl v_l, j = c(i)

    Choose it over `bert` for rows far longer than `clusters`: attention costs clusters + topk pairs for each token, and
    every key is still read. The weights are bert's, so that `--from` the folder of a trained one, with the same
    keywords, approximates that: with 25 clusters the paper lost nothing. Trained by hiding tokens. A step of training
    (width 256, batch 1, on a CPU) is faster than `bert`'s from about 1,800 tokens on, at 4,096 1.8 times as fast
    (bench/README.md).

    d: width of a token.
    depth: layers.
    heads: heads of attention.
    form: "improved" weighs the `topk` keys that a cluster's mean weighs most for each query by itself; "plain" gives
        all queries of a cluster what their mean read: y_i = sum over l of A^c_jl v_l.
    clusters: of a row and head; the paper's speech models have 100 to 300.
    topk: keys that each query weighs by itself.
    bits: random projections of the hash.
    iterations: of k-means.
    hash_bias: hashes by hyperplanes that need not go through 0, as the authors' code.
    redraw: draws the projections anew after so many steps of training, 1 being nearest to the authors' code; kept
        unless given. Redrawn ones are saved with the weights, so that bert's then do not fit.
    head_dim: the width of a head, d / heads unless given.
    position: what is added to embedded tokens, as in `bert`.
    norm: "post" as in BERT and the authors' code, or "pre".
    length: the longest row, with learned positions.
    kinds: how many kinds of segments are told apart.
    vocab: tokens there are.
    dropout: the share of numbers and of attention weights dropped in training.
    """
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout, eps=EPS)

    def mechanism(n: int) -> Mechanism:
        means = HammingKMeans(
            wiring.width, clusters, bits=bits, iterations=iterations, bias=hash_bias, redraw=redraw, seed=n
        )
        if form == "plain":
            return Clustered(means, dropout=dropout)
        return ImprovedClustered(means, topk, dropout=dropout)

    mechanisms = [mechanism(n) for n in range(check_at_least("depth", depth, 1))]
    projected = [Attention(QKV(d, heads, head_dim=wiring.width), clustering) for clustering in mechanisms]
    body = wiring.stack(wiring.block(attention, MLP(d)) for attention in projected)
    return MLM(
        vocab, d, body, position=wiring.added_position(), scale=wiring.scale, kinds=kinds, eps=EPS, dropout=dropout
    )


EXAMPLES = (
    lambda: clustered_transformer(
        d=16, depth=2, heads=2, form="plain", clusters=12, bits=15, iterations=2, length=64, vocab=11
    ),
    lambda: clustered_transformer(
        d=16,
        depth=1,
        heads=2,
        clusters=8,
        topk=4,
        bits=9,
        iterations=3,
        hash_bias=True,
        redraw=1,
        head_dim=6,
        position="sinusoidal",
        norm="pre",
        vocab=11,
    ),
)
