"""Reformer: attention within buckets of like tokens, in layers that keep no activations."""

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
    needs={
        "buckets, rounds, eval_rounds, redraw, chunk, scale": "local=none or depth>1",
        "restricted, divided": "chunk!=none",
    }
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
    """Reformer (Kitaev et al., 2020, arXiv:2001.04451): LSH attention with shared queries and keys, reversible layers.

    Choose it for deep models and long rows: training keeps no activations. Even blocks read their block of `local`
    positions and the one before it, odd blocks what hashes put into their own buckets: the alternation is that of
    Hugging Face's default configuration. The paper describes no local blocks: `local` None hashes in all. A step of
    training (width 256, batch 1, on a CPU) is faster than `gpt`'s from about 1,700 tokens on, at 16,384 3.9 times as
    fast (bench/README.md).

    d: the width of each of the stream's two halves.
    depth: blocks.
    heads: heads of attention.
    buckets: buckets of a round, an even number.
    rounds: how often is hashed in training.
    eval_rounds: how often a trained model hashes, `rounds` unless given; the paper trains with 4 and evaluates with 1
        to 8. Weights are the same for any number.
    redraw: draws the rotations anew after so many steps of training, 1 being nearest to the authors' code; kept unless
        given.
    local: positions of a block of the even blocks; None hashes in every block.
    chunk: cuts the sorted list as published, which bounds the cost where buckets are uneven but lets later tokens move
        the cuts; whole buckets unless given.
    length: the longest row it can read.
    vocab: tokens there are.
    tie: False gives the head a matrix of its own.
    dropout: the share of numbers dropped in training.
    scale: the factor of q.k in the blocks that hash, whose keys have length 1: the paper's 1/sqrt(head_dim) unless
        given, 1 in the authors' code.
    halves: "own" embeds a token for each half by itself and hands both to the head; tables of equal halves make it the
        authors' code. "same" starts both as one embedding and hands on their mean, as reformer-pytorch has it: half the
        embedding's weights.
    ff_chunk: tokens that a feed-forward reads at a time, which bounds the memory of its wide values; all unless given.
    head_dim: the width of a head, d / heads unless given.
    restricted: False, with a `chunk`, reads other buckets of the two chunks too, as Hugging Face has it.
    divided: False, with a `chunk`, counts a key once for each round that finds it, as Hugging Face and reformer-pytorch
        have it; the paper once.
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


GRAPH = {"compiles": "its reversible layers are computed again in the backward, which is no one graph"}
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
