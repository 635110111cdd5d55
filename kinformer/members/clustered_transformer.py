"""Clustered Transformer: an encoder in which clusters of similar queries attend through their mean."""

from typing import Literal

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.mechanism import Mechanism
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.wiring import Norms, Wiring
from kinformer.models.mlm import MLM
from kinformer.nn.attention import Attention
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.nn.mechanisms.clustered_improved import ImprovedClustered
from kinformer.nn.mechanisms.hamming_kmeans import HammingKMeans
from kinformer.nn.projections.qkv import QKV

Form = Literal["improved", "plain"]
Added = Literal["learned", "sinusoidal", "tensor2tensor", "none"]  # a mean of queries has no distance to a key
TOPK = 32  # as in the paper


@member(
    cost="L * (clusters * bits * iterations + topk)",
    recipe=Recipe(lr=5e-4),
    needs={"topk": "form=improved", "length": "position=learned"},
)
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
    """Clustered attention (Vyas et al., 2020, arXiv:2007.04825) as an encoder.

    y_i = m_j softmax over l in T_j of (q_i.k_l / sqrt(head_dim)) v_l + sum over l not in T_j of A^c_jl v_l, j = c(i)

    Query i belongs to cluster j. A^c are the attention weights of the mean queries. T_j are the `topk` keys that the
    mean query of cluster j weighs most, and m_j is the sum of their weights. The mean query of each cluster attends in
    place of its queries. Choose it over `bert` for rows much longer than `clusters`: attention costs clusters + topk
    pairs per token, and no key is left out. The model trains on the prediction of masked tokens.

    The weights have the names and shapes of `bert`'s. `--from` with the folder of a trained `bert` and the same
    keywords approximates that model; with 25 clusters the paper lost nothing. A training step (width 256, batch 1, on a
    CPU) is faster than `bert`'s from about 1,800 tokens on, and 1.8 times as fast at 4,096 (bench/README.md).

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    form: "plain" gives all queries of a cluster the output of their mean, y_i = sum over l of A^c_jl v_l. "improved"
        corrects it: each query weighs the `topk` keys that its cluster's mean weighs most.
    clusters: number of clusters per row and head; the paper's speech models have 100 to 300.
    topk: number of keys for which each query computes weights of its own.
    bits: number of random projections of the hash.
    iterations: number of k-means iterations.
    hash_bias: hash by hyperplanes that need not pass through 0, as in the authors' code.
    redraw: number of training steps after which the projections are drawn again; 1 is nearest to the authors' code.
        None keeps them. Redrawn projections are saved with the weights, so the weights of a `bert` no longer fit.
    head_dim: width of a head; d / heads if None.
    position: position encoding that is added to the embeddings, as in `bert`.
    norm: "post" as in BERT and the authors' code, or "pre".
    length: longest row in tokens (learned positions).
    kinds: number of segment types.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    """
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout, eps=1e-12)

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
        vocab, d, body, position=wiring.added_position(), scale=wiring.scale, kinds=kinds, eps=1e-12, dropout=dropout
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
