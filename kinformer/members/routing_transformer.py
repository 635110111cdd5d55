"""Routing Transformer: half of the heads local, the others within learned clusters of like tokens."""

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
    needs={
        "clusters, window, update, decay, commitment, shared, norm": "routed!=0",
        "length": "position=learned or clusters=none and routed!=0",
        "alone": "window!=none and shared=false",
        "eps": "window!=none",
    }
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
    """Routing Transformer (Roy et al., 2020, arXiv:2003.05997): local heads, and heads that read their token's cluster.

    Choose it for long rows whose far dependencies are few and found by content; over `reformer` where clusters should
    be learned. In blocks that route, the first half of the heads is local and the second half reads what online k-means
    put into the query's cluster; blocks beneath are local. Pre-norm blocks. A step of training (width 256, batch 1, on
    a CPU) is faster than `gpt`'s from about 1,900 tokens on, at 16,384 4.0 times as fast (bench/README.md).

    d: the width.
    depth: blocks.
    heads: heads of attention, an even number.
    head_dim: the width of a head, d / heads unless given.
    local: how many tokens back local heads read.
    routed: how many blocks, from the top, route: 2 are the last two; all unless given.
    clusters: centroids of a head, the paper's sqrt(length) unless given.
    window: tokens that a centroid takes, as published: its cost is certain, but which tokens it takes depends on later
        ones, so that a model trained with it knows a little of what comes; whole clusters unless given.
    update: how centroids follow: "sum" is the paper's, "direction" the published PyTorch code's, which moves them some
        hundred times less.
    decay: of the centroids' moving average.
    commitment: the weight in the loss of the distance of queries and keys to their centroids. The paper's algorithm has
        none; the authors' code has one, and the published PyTorch code (1e-4).
    position: what is not added to the embedded is known to local heads alone, as "relative" is in the authors' code.
    length: the longest row it can read where positions are learned.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    shared: in heads that route keys are their queries, the paper's causal form; False gives keys a matrix of their own,
        as the published PyTorch code does unless told.
    alone: with a `window` and without `shared`, what a cluster counts for in the mean in which a query found no key:
        "skipped" nothing, "zero" a read of 0, "null" has a learned key and value beside those of every cluster, as the
        published PyTorch code does. A query that is its own key finds at least that.
    norm: "layer" normalises queries and keys that route, without gain and bias, as in the paper; "none" leaves them, as
        the published PyTorch code does.
    eps: with a `window`, added to the number of clusters that a token's reads are divided by: 1e-5 in the published
        PyTorch code, 1e-2 in the authors'.
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


PUSHED = "a cluster takes a fixed number of tokens, so a later token of a call pushes an earlier one out of it"
TAKEN = dict.fromkeys(("chunk", "gradients", "padding", "peek"), PUSHED)
TINY: dict[str, Any] = {"d": 16, "heads": 4, "local": 4, "vocab": 11}


def _keys_apart(alone: Alone) -> Callable[[], LM]:
    """Routing by keys of their own, with queries that may be alone in a cluster."""
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
