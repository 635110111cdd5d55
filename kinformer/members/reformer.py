"""Reformer: attention within buckets of similar tokens, in reversible layers."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_option, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.causal import Causal
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.depth.doubled import Doubled
from kinformer.nn.depth.reversible import Coupled, Reversible
from kinformer.nn.feedforward.chunked import Chunked
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.lsh import LSH
from kinformer.nn.mechanisms.lsh_published import PublishedLSH
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.patterns.block import Block
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.shared_qk import SharedQK

Halves = Literal["own", "same"]


@member(
    cost="L * (local + rounds * buckets) + L**2 * rounds / buckets",
    needs={
        "buckets, rounds, eval_rounds, redraw, chunk, scale": "local=none or depth>1",
        "restricted, divided": "chunk!=none",
    },
)
def reformer(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    buckets: int = 16,
    rounds: int = 2,
    local: int | None = 64,
    chunk: int | None = None,
    length: int = 1024,
    vocab: int = 256,
    tie: bool = True,
    dropout: float = 0.0,
    scale: float | None = None,
    eval_rounds: int | None = None,
    redraw: int | None = None,
    halves: Halves = "own",
    ff_chunk: int | None = None,
    head_dim: int | None = None,
    restricted: bool = True,
    divided: bool = True,
) -> LM:
    """Reformer (Kitaev et al., 2020, arXiv:2001.04451): LSH attention in reversible layers.

    Choose it for deep models and long rows: training stores no activations. Queries and keys are shared. Even layers
    read their block of `local` positions and the block before it. In odd layers a token reads the tokens that hashes
    put into the same bucket. A training step (width 256, batch 1, on a CPU) is faster than `gpt`'s from about 1,700
    tokens on, and 3.9 times as fast at 16,384 (bench/README.md).

    d: width of each of the two halves of the residual stream.
    depth: number of layers.
    heads: number of attention heads.
    buckets: number of buckets per round, an even number.
    rounds: number of hash rounds during training.
    local: positions in a block of the even layers; None hashes in every layer.
    chunk: size of the pieces into which the sorted list is cut, as published. It bounds the cost if buckets are uneven,
        but later tokens move the cuts. None reads whole buckets.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    tie: use the embedding as the output head; False gives the head its own matrix.
    dropout: dropout probability of embeddings, feed-forward units and sublayer outputs.
    scale: factor of q.k in the hashing layers, which have keys of length 1. None is the paper's 1/sqrt(head_dim); the
        authors' code has 1.
    eval_rounds: number of hash rounds during evaluation; `rounds` if None. The paper trains with 4 and evaluates with 1
        to 8. The weights fit any number.
    redraw: number of training steps after which the rotations are drawn again; 1 is nearest to the authors' code. None
        keeps them.
    halves: embedding of the two halves. With "own" each half has a separate embedding and both reach the head; equal
        embeddings of both halves give the authors' code. With "same" both halves start as one embedding and their mean
        reaches the head, as in reformer-pytorch. It needs half the embedding weights.
    ff_chunk: number of tokens that a feed-forward layer reads at a time, which bounds the memory of its hidden units;
        all if None.
    head_dim: width of a head; d / heads if None.
    restricted: with a `chunk`, read only the query's own bucket; False also reads the other buckets of the two chunks,
        as in Hugging Face.
    divided: with a `chunk`, count a key once if several rounds find it, as in the paper; False counts it once per
        round, as in Hugging Face and reformer-pytorch.

    Differences: the paper describes no local blocks, which is `local` None. The alternation is the default
    configuration of Hugging Face.
    """
    check_option("halves", halves, Halves)
    wide = resolve_head_dim(d, heads, head_dim)

    def lsh(seed: int) -> Mechanism:
        if chunk is None:
            return LSH(heads, wide, buckets, rounds, eval_rounds=eval_rounds, redraw=redraw, scale=scale, seed=seed)
        return PublishedLSH(
            heads,
            wide,
            buckets,
            chunk,
            rounds,
            eval_rounds=eval_rounds,
            redraw=redraw,
            scale=scale,
            restricted=restricted,
            divided=divided,
            seed=seed,
        )

    def attention(n: int) -> Attention:
        if n % 2 or local is None:
            return Attention(SharedQK(d, heads, head_dim=wide, bias=False), lsh(n))
        return Attention(QKV(d, heads, head_dim=wide, bias=False), Softmax(Causal() & Block(local, back=1), lse=False))

    def block(n: int) -> Coupled:
        feed = MLP(d, activation="relu", dropout=dropout)
        return Coupled(attention(n), feed if ff_chunk is None else Chunked(feed, ff_chunk), dropout=dropout)

    blocks, width = [block(n) for n in range(check_at_least("depth", depth, 1))], 2 * d if halves == "own" else d
    body = Reversible(blocks, LayerNorm(width)) if halves == "own" else Doubled(Reversible(blocks), LayerNorm(width))
    return LM(vocab, width, body, position=Learned(width, length), tie=tie, std=tied_start(width, 0.5), dropout=dropout)


GRAPH = {"compiles": "the backward pass computes reversible layers again, so there is no single graph"}
BORDERS = "the published form sorts all tokens of a call and cuts the list, so later tokens move the borders of chunks"
SORTED = {**GRAPH, **dict.fromkeys(("chunk", "gradients", "padding", "peek"), BORDERS)}
EXAMPLES = (
    Example(lambda: reformer(d=16, depth=2, heads=2, buckets=4, local=4, length=64, vocab=11), breaks=GRAPH),
    Example(
        lambda: reformer(
            d=16,
            depth=2,
            heads=2,
            buckets=4,
            rounds=1,
            local=4,
            length=64,
            vocab=11,
            eval_rounds=3,
            redraw=1,
            halves="same",
            ff_chunk=3,
            head_dim=6,
        ),
        breaks=GRAPH,
    ),
    Example(
        lambda: reformer(
            d=16, depth=1, heads=2, buckets=4, local=None, chunk=4, scale=1.0, tie=False, length=64, vocab=11
        ),
        breaks=SORTED,
    ),
    Example(
        lambda: reformer(
            d=16, depth=1, heads=2, buckets=4, local=None, chunk=4, restricted=False, divided=False, length=64, vocab=11
        ),
        breaks=SORTED,
    ),
)
