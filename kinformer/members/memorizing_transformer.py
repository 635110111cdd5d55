"""Memorizing Transformer: a decoder with one layer that retrieves distant tokens."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_option, check_whole_between
from kinformer.core.discover import member
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.core.search import search_named
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.biases.t5 import T5
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.hidden import Hidden
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV

Local = Literal["window", "segments"]


@member(cost="L * (segment + memory)", needs={"layer": "depth>1"})
def memorizing_transformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    segment: int = 64,
    memory: int = 512,
    k: int = 32,
    local: Local = "window",
    layer: int | None = None,
    vocab: int = 256,
    dropout: float = 0.0,
    search: str = "exact",
) -> LM:
    """Memorizing Transformer (Wu et al., 2022, arXiv:2203.08913): one upper layer with a long memory.

    Choose it for text that repeats itself over long distances. The model trains on consecutive text and carries its
    state from batch to batch, because random windows would leave the memory empty. Distances have T5's biases.

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    segment: number of earlier tokens that every layer reads.
    memory: number of keys before the segment that the memory layer stores. It is not part of the weights, so the
        weights of a trained model also fit a larger memory.
    k: number of memory keys with the highest scores that each query of the memory layer also reads.
    local: "window" reads the token and the `segment` before it, the paper's sliding window. With "segments" a token
        reads its own segment and all of the one before.
    layer: number of the memory layer, from 1 at the bottom; three quarters up if None, as the 9th of 12 in the paper.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, sublayer outputs, and attention weights except in the memory layer.
    search: way to find these keys in the memory: "exact", or an approximate index of FAISS, such as "hnsw" or
        "ivf:probes=16".
    """
    sliding = check_option("local", local, Local) == "window"
    near = Causal() & (Band(segment) if sliding else Segment(segment, segment))

    check_at_least("depth", depth, 1)
    far = -(-3 * depth // 4) if layer is None else check_whole_between("layer", layer, 1, depth)

    def attention(n: int) -> Attention:
        if n == far:
            projection = QKV(d, heads, head_dim=head_dim)
            by = search_named(search)
            return Attention(projection, Retrieval(heads, segment, memory, k, T5(heads), near=near, search=by))
        mechanism = Softmax(near, T5(heads), dropout=dropout)
        return Attention(QKV(d, heads, head_dim=head_dim), mechanism, memory=Hidden(segment, segment))

    blocks = [PreNorm(attention(n), MLP(d), dropout=dropout) for n in range(1, depth + 1)]
    return LM(vocab, d, Stack(blocks, LayerNorm(d)), std=tied_start(d), dropout=dropout, lanes=True)


EXAMPLES = (
    lambda: memorizing_transformer(d=16, depth=2, heads=2, segment=5, memory=7, k=2, vocab=11),
    lambda: memorizing_transformer(
        d=16, depth=2, heads=2, segment=4, memory=6, k=2, local="segments", layer=1, vocab=11
    ),
)
