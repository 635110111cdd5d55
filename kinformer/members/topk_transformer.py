"""Top-k Transformer: a decoder in which each query reads only the keys with the highest scores."""

from typing import Literal

from kinformer.core.discover import member
from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.causal import Causal
from kinformer.core.search import search_named
from kinformer.members.support.window_sizes import numbers_per_layer
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.topk import TopK
from kinformer.nn.mechanisms.topk_equals import TopKEquals
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV

Ties = Literal["all", "latest"]


@member(cost="L**2", needs={"search": "ties=latest"})
def topk_transformer(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    k: int | tuple[int, ...] = 8,
    ties: Ties = "all",
    head_dim: int | None = None,
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
    search: str = "exact",
) -> LM:
    """Explicit Sparse Transformer (Zhao et al., 2019, arXiv:1912.11637): attention to the `k` best keys.

    y_i = sum of softmax over the keys of query i whose score is at least its k-th highest

    Choose it if each token should read only few tokens, selected by content. Otherwise it is like `gpt`: pre-norm
    blocks and learned positions.

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    k: number of keys that a query reads; one number, or one for each layer from the bottom. The paper found 8 good, and
        smaller numbers worse.
    ties: "all" reads every key with a score equal to the k-th highest, as in the paper. "latest" reads exactly k keys,
        and prefers later keys among equal scores.
    head_dim: width of a head; d / heads if None.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.
    search: way to find the keys, with ties="latest": "exact", or an index of FAISS, such as "hnsw". An index finds most
        of the `k` best keys without computing all scores.
    """
    search_method = search_named(search)

    def mechanism(max_keys: int) -> Mechanism:
        if ties == "latest":
            return TopK(Causal(), max_keys, dropout=dropout, search=search_method)
        return TopKEquals(Causal(), max_keys, dropout=dropout)

    def block(max_keys: int) -> PreNorm:
        attention = Attention(QKV(d, heads, head_dim=head_dim), mechanism(max_keys))
        return PreNorm(attention, MLP(d, activation="gelu_tanh"), dropout=dropout)

    body = Stack([block(max_keys) for max_keys in numbers_per_layer("k", k, depth, 1)], LayerNorm(d))
    return LM(vocab, d, body, position=Learned(d, length), std=tied_start(d), dropout=dropout)


EXAMPLES = (
    lambda: topk_transformer(d=16, depth=2, heads=2, k=3, length=64, vocab=11),
    lambda: topk_transformer(d=16, depth=2, heads=2, k=2, ties="latest", head_dim=6, length=64, vocab=11),
    lambda: topk_transformer(d=16, depth=2, heads=2, k=(3, 2), length=64, vocab=11),
)
