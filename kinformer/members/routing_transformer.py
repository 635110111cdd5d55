"""Routing Transformer: local heads, and heads that read learned clusters of similar tokens."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from kinformer.core.checks import check_at_least, check_in_range, check_multiple, check_option
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.causal import Causal
from kinformer.members.support.wiring import Positions, Wiring, tied_start
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.centroids import Update
from kinformer.nn.mechanisms.routing import Norm, Routing
from kinformer.nn.mechanisms.routing_published import PublishedRouting
from kinformer.nn.mechanisms.split import SplitHeads
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.by_heads import ByHeads
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.shared_qk import SharedQK

Alone = Literal["skipped", "zero", "null"]


@member(
    cost="L * (local + clusters) + L**2 / clusters",
    needs={
        "clusters, window, update, decay, commitment, shared, norm": "routed!=0",
        "length": "position=learned or clusters=none and routed!=0",
        "alone": "window!=none and shared=false",
        "eps": "window!=none",
    },
)
def routing_transformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    local: int = 64,
    routed: int | None = None,
    clusters: int | None = None,
    window: int | None = None,
    update: Update = "sum",
    decay: float = 0.999,
    commitment: float = 0.0,
    position: Positions = "learned",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
    shared: bool = True,
    alone: Alone = "skipped",
    norm: Norm = "layer",
    eps: float = 0.0,
) -> LM:
    """Routing Transformer (Roy et al., 2020, arXiv:2003.05997): local heads and heads with clusters.

    Choose it for long rows in which a token depends on few distant tokens with similar content. Choose it over
    `reformer` if clusters should be learned. In routing blocks the first half of the heads is local. The second half
    reads the tokens that online k-means puts into the query's cluster. Lower blocks are local. Blocks are pre-norm. A
    training step (width 256, batch 1, on a CPU) is faster than `gpt`'s from about 1,900 tokens on, and 4.0 times as
    fast at 16,384 (bench/README.md).

    d: model width.
    depth: number of blocks.
    heads: number of attention heads, an even number.
    head_dim: width of a head; d / heads if None.
    local: number of earlier tokens that local heads read.
    routed: number of blocks, from the top, that route; all if None.
    clusters: number of centroids per head; the paper's sqrt(length) if None.
    window: number of tokens that a centroid takes, as published. The cost is then fixed, but later tokens affect which
        tokens it takes, so a model trained with it sees a little of the future. None reads whole clusters.
    update: update of the centroids: "sum" as in the paper, or "direction" as in the published PyTorch code, which moves
        them about a hundred times less.
    decay: decay of the centroids' moving average.
    commitment: loss weight of the distance of queries and keys to their centroids. The paper's algorithm has none; the
        authors' code has one, as does the published PyTorch code (1e-4).
    position: position encoding. Encodings that are not added to embeddings apply only to local heads, as does
        "relative" in the authors' code.
    length: longest row in tokens (learned positions).
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, local attention weights, feed-forward units and sublayer outputs.
    shared: in routing heads the queries are also the keys, the paper's causal form. False gives keys their own matrix,
        the default of the published PyTorch code.
    alone: with a `window` and without `shared`, the contribution to the mean of a cluster in which a query found no
        key. With "skipped" the cluster is left out, and with "zero" it counts as a result of 0. With "null" every
        cluster has a learned key and value, as in the published PyTorch code. A query that is its own key always finds
        at least that key.
    norm: "layer" normalises the queries and keys that route, without gain and bias, as in the paper. "none" does not,
        as in the published PyTorch code.
    eps: with a `window`, number added to the count of clusters that divides a token's results: 1e-5 in the published
        PyTorch code, 1e-2 in the authors' code.
    """
    check_option("alone", alone, Alone)
    half = check_multiple("heads", heads, "halves", 2) // 2
    wiring = Wiring(d, heads, head_dim, position, length, dropout=dropout)
    few = Wiring(d, half, wiring.width, position, length)
    first = 0 if routed is None else max(depth - check_at_least("routed", routed, 0), 0)
    count = round(length**0.5) if clusters is None else clusters
    near = Causal() & Band(local)

    def routing(seed: int) -> Mechanism:
        if window is None:
            return Routing(half, wiring.width, count, norm=norm, update=update, decay=decay, seed=seed)
        return PublishedRouting(
            half,
            wiring.width,
            count,
            window,
            null=alone == "null",
            alone="zero" if alone == "zero" else "skipped",
            norm=norm,
            eps=eps,
            update=update,
            decay=decay,
            seed=seed,
        )

    def attention(n: int) -> Attention:
        if n < first:
            return wiring.attention(near, dropout=dropout)
        of_few = few.attention(near, dropout=dropout)
        of_half = partial(SharedQK, unit=False) if shared else QKV
        projection = ByHeads(of_few.projection, of_half(d, half, head_dim=wiring.width))
        return Attention(projection, SplitHeads(of_few.mechanism, routing(n)))

    body = wiring.stack(
        wiring.block(attention(n), MLP(d, dropout=dropout)) for n in range(check_at_least("depth", depth, 1))
    )
    penalties = {"commitment": check_in_range("commitment", commitment, 0, math.inf)} if commitment else {}
    added, scale = wiring.added_position(), wiring.scale
    return LM(vocab, d, body, position=added, scale=scale, std=tied_start(d, 0.5), dropout=dropout, penalties=penalties)


PUSHED = "a cluster takes a fixed number of tokens, so a later token of a call can displace an earlier one"
TAKEN = dict.fromkeys(("chunk", "gradients", "padding", "peek"), PUSHED)
TINY: dict[str, Any] = {"d": 16, "heads": 4, "local": 4, "vocab": 11}


def _keys_apart(alone: Alone) -> Callable[[], LM]:
    """Return a builder with separate keys, so that queries may be alone in a cluster."""
    keywords: dict[str, Any] = {"window": 4, "clusters": 2, "shared": False, "position": "relative", "alone": alone}
    return lambda: routing_transformer(**TINY, depth=1, **keywords)


EXAMPLES = (
    lambda: routing_transformer(**TINY, depth=2, routed=1, clusters=2, commitment=0.01, position="relative"),
    Example(
        lambda: routing_transformer(**TINY, depth=1, window=4, update="direction", norm="none", eps=1e-2, length=64),
        breaks=TAKEN,
    ),
    Example(_keys_apart("skipped"), breaks=TAKEN),
    Example(_keys_apart("zero"), breaks=TAKEN),
    Example(_keys_apart("null"), breaks=TAKEN),
)
