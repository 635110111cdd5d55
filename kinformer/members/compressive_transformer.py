"""Compressive Transformer: a Transformer-XL that compresses its oldest memories."""

from collections.abc import Callable
from typing import Any, Literal

from kinformer.core.checks import check_at_least, check_option, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.patterns.causal import Causal
from kinformer.core.training_recipe import Recipe
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.biases.transformer_xl import SHARED, TransformerXL
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.losses.compression import AttentionReconstruction, AutoEncoding, Norm
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.compressed_positions import CUTS, BySlots, ByTokens
from kinformer.nn.memories.compression import DilatedConv, MaxPool, MeanPool, MostUsed, StridedConv
from kinformer.nn.memories.compressive import ONE, Compressive
from kinformer.nn.projections.qkv import QKV

Compression = Literal["mean", "max", "conv", "dilated", "most_used"]
Reconstruction = Literal["attention", "autoencoding"]
Count = Literal["slots", "tokens"]


@member(
    cost="L * (segment + memory + compressed)",
    recipe=Recipe(lr=1e-3, warmup=0.2),
    needs={"loss, distance": "compression=conv|dilated"},
)
def compressive_transformer(
    d: int = 128,
    depth: int = 4,
    heads: int = 4,
    head_dim: int | None = None,
    segment: int = 64,
    memory: int = 64,
    compressed: int = 64,
    rate: int = 4,
    compression: Compression = "conv",
    count: Count = "slots",
    loss: Reconstruction = "attention",
    distance: Norm = "l2",
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Compressive Transformer (Rae et al., 2019, arXiv:1911.05507) with two memories.

    Choose it if the memory of `transformer_xl` is too short. Each layer reads its segment, the `memory` tokens before
    it, and `rate` times `compressed` tokens before those. Blocks are post-norm.

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    segment: tokens of a segment; a multiple of `rate`.
    memory: tokens before the segment that are kept uncompressed.
    compressed: number of compressed states that are kept.
    rate: number of old states per compressed state.
    compression: "mean", "max" or "most_used", which have no parameters, or "conv" or "dilated", which learn.
    count: unit of distances to compressed states: "slots" counts each as one position, as in the paper. "tokens" counts
        the tokens that it summarises, and can separate the documents of a row.
    loss: loss of the learned compressions, "attention" (error of what attention reads) or "autoencoding". It trains
        only the compression, and no other loss reaches the compression. It has no weight, because the step size of Adam
        does not depend on the size of the gradient.
    distance: measure of the error in this loss: "l2" or "mse" for each token, or "segment", the paper's norm over a
        whole segment. With "segment" no segment may be cut.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights, feed-forward units and sublayer outputs.
    """
    biases = TransformerXL.make_sharing(
        check_at_least("depth", depth, 1), heads, resolve_head_dim(d, heads, head_dim), d
    )
    compressions = {
        "mean": lambda: MeanPool(rate),
        "max": lambda: MaxPool(rate),
        "conv": lambda: StridedConv(d, rate),
        "dilated": lambda: DilatedConv(d, rate),
        "most_used": lambda: MostUsed(rate),
    }
    learned = check_option("compression", compression, Compression) in ("conv", "dilated")
    check_option("loss", loss, Reconstruction)
    places = {"slots": BySlots, "tokens": ByTokens}[check_option("count", count, Count)]

    def block(bias: TransformerXL) -> PostNorm:
        objective = AttentionReconstruction(distance) if loss == "attention" else AutoEncoding(d, rate, distance)
        compressive = Compressive(
            segment, memory, compressed, compressions[compression](), objective if learned else None, places=places()
        )
        mechanism = Softmax(Causal() & compressive.reads, bias, dropout=dropout)
        attention = Attention(QKV(d, heads, head_dim=head_dim, bias=False), mechanism, memory=compressive)
        return PostNorm(attention, MLP(d, activation="relu", dropout=dropout), dropout=dropout)

    name = AttentionReconstruction.key if loss == "attention" else AutoEncoding.key
    penalties = {name: 1.0} if learned else {}
    body = Stack(block(bias) for bias in biases)
    return LM(vocab, d, body, scale=d**0.5, std=0.02, dropout=dropout, penalties=penalties, lanes=True)


GRAPH = {"compiles": CUTS}
DOCUMENTS = "the autoencoding loss is a norm over all states that a segment compresses, across documents"
TOGETHER = {**GRAPH, "limits": DOCUMENTS}
WHOLE = {**GRAPH, **dict.fromkeys(("batch_mates", "chunk", "gradients", "padding", "peek", "rows"), ONE)}
TINY: dict[str, Any] = {"d": 16, "heads": 2, "segment": 4, "memory": 4, "compressed": 2, "rate": 2, "vocab": 11}


def _tiny(**keywords: Any) -> Callable[[], LM]:
    return lambda: compressive_transformer(**TINY, **keywords)


EXAMPLES = (
    Example(_tiny(depth=2), breaks=GRAPH, shares=SHARED),
    Example(
        _tiny(depth=1, compression="dilated", count="tokens", loss="autoencoding", distance="mse"), breaks=TOGETHER
    ),
    Example(_tiny(depth=1, distance="segment"), breaks=WHOLE),
    Example(_tiny(depth=1, compression="mean"), breaks=GRAPH),
    Example(_tiny(depth=1, compression="max"), breaks=GRAPH),
    Example(_tiny(depth=1, compression="most_used"), breaks=GRAPH),
)
