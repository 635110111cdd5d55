"""BP-Transformer: attention over spans of a binary tree, fine nearby and coarse far away."""

from typing import Literal

from kinformer.core.checks import check_at_least, resolve_head_dim
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.core.training_recipe import Recipe
from kinformer.members.support.wiring import START
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.biases.tree_edges import TreeEdges
from kinformer.nn.blocks.post_norm import PostNorm
from kinformer.nn.depth.span_nodes import SpanNodes
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.tree_softmax import TreeSoftmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.sinusoidal import Sinusoidal
from kinformer.nn.projections.qkv import QKV


@member(cost="L * k * log(L / k)", recipe=Recipe(lr=1e-3, warmup=0.2), needs={"clip": "position=edges"})
def bp_transformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    k: int = 4,
    form: Literal["decoder", "encoder"] = "decoder",
    position: Literal["edges", "sinusoidal", "none"] = "edges",
    clip: int = 6,
    hidden: int | None = None,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM | MLM:
    """BP-Transformer (Ye et al., 2019, arXiv:1911.04070): attention on a binary tree of spans.

    y_i = sum over the nodes j that i reads of softmax((q_i.k_j + q_i.a_type(i, j)) / sqrt(width of a head)) v_j

    With position "edges", each type of edge has a vector a. Choose it if near tokens matter one by one and distant
    tokens matter as a whole. A token reads about 2 k log2(n / k) nodes of a row of n tokens, and in a decoder half as
    many. These nodes cover the whole row in every layer. Spans are nodes with vectors of their own. Blocks are
    post-norm.

    d: width of a token and of a span.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    k: number of spans per level that a token reads on each side; from 1 to 64 in the paper.
    form: "decoder" generates text, under the causal form of the graph; "encoder" trains on masked tokens.
    position: "edges" adds a vector for each type of edge to the keys. "sinusoidal" adds sinusoids to the tokens. The
        authors' code has both, one at a time. With "none" only the graph encodes order.
    clip: levels of the tree above this one share their edge types.
    hidden: width of the feed-forward layer; 4 d if None.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights, feed-forward units and sublayer outputs.
    """
    causal, width = form == "decoder", resolve_head_dim(d, heads, head_dim)

    def block() -> PostNorm:
        bias = TreeEdges(width, k, clip, causal=causal) if position == "edges" else None
        mechanism = TreeSoftmax(k, bias, causal=causal, dropout=dropout, lse=False)
        last = OutProjection(heads, width, d, bias=False)
        attention = Attention(QKV(d, heads, head_dim=width, bias=False), mechanism, aggregation=last)
        return PostNorm(attention, MLP(d, hidden, activation="relu", dropout=dropout), dropout=dropout)

    stack = Stack([block() for _ in range(check_at_least("depth", depth, 1))])
    waves = Sinusoidal(d) if position == "sinusoidal" else None
    if causal:  # MLM has its own norm of the embeddings
        body = SpanNodes(stack, causal=True, norm=LayerNorm(d))
        return LM(vocab, d, body, position=waves, std=START, dropout=dropout)
    return MLM(vocab, d, SpanNodes(stack, causal=False), position=waves, dropout=dropout)


NODES = {"learns": "its patterns connect nodes of a tree, and no node reads another at the same distance everywhere"}
EXAMPLES = (
    Example(lambda: bp_transformer(d=16, depth=2, heads=2, k=2, clip=2, vocab=11), NODES),
    Example(lambda: bp_transformer(d=16, depth=2, heads=2, k=1, form="encoder", vocab=11), NODES),
    Example(
        lambda: bp_transformer(d=16, depth=1, heads=2, k=2, position="sinusoidal", hidden=24, vocab=11), breaks=NODES
    ),
    Example(
        lambda: bp_transformer(d=16, depth=1, heads=2, k=1, form="encoder", position="none", vocab=11), breaks=NODES
    ),
)
