"""Collaborative heads: a decoder in which all heads share one query matrix and one key matrix."""

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.pattern_parser import parse
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.collaborative import Collaborative, Mixing, Scale


@member(cost="L**2")
def collaborative(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    shared: int | None = None,
    mixing: Mixing = "normal",
    scale: Scale = "shared",
    content: bool = True,
    pattern: str = "Causal()",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Collaborative attention (Cordonnier et al., 2020, arXiv:2006.16362), as a decoder.

    All heads share one projection of queries and one of keys, of width `shared`. Each head weighs the dimensions of
    this projection by a learned vector. Choose it over `gpt` for fewer parameters and a smaller cache. A pair of query
    and key costs heads x shared multiplications in place of d. So it saves time only in the projections, unless
    `shared` is below d / heads. `Collaborative.from_trained` converts the projection of a trained `gpt` layer.

    d: model width.
    depth: number of blocks.
    heads: number of attention heads.
    head_dim: width of a head's values; d / heads if None. Queries and keys have width `shared`.
    shared: width of queries and keys; d / 4 if None, with which the paper loses nothing in translation.
    mixing, scale, content: as in `projections.collaborative.Collaborative`.
    pattern: expression for the tokens that each token reads, such as "Causal() & Band(64)", in every block.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    Differences: the paper replaces attention in BERT, in translation and in vision. The blocks here are as in `gpt`.
    """
    columns = max(d // 4, 1) if shared is None else shared

    def block() -> PreNorm:
        projection = Collaborative(
            d, heads, shared=columns, v_dim=head_dim, mixing=mixing, scale=scale, content=content
        )
        attention = Attention(projection, Softmax(parse(pattern), dropout=dropout, lse=False))
        return PreNorm(attention, MLP(d, activation="gelu_tanh"), dropout=dropout)

    body = Stack([block() for _ in range(check_at_least("depth", depth, 1))], LayerNorm(d))
    return LM(vocab, d, body, position=Learned(d, length), std=tied_start(d), dropout=dropout)


EXAMPLES = (
    lambda: collaborative(d=16, depth=2, heads=2, head_dim=5, length=64, vocab=11),
    lambda: collaborative(
        d=16,
        depth=1,
        heads=2,
        shared=6,
        mixing="ones",
        scale="head",
        content=False,
        pattern="Causal() & Band(5)",
        length=64,
        vocab=11,
    ),
    lambda: collaborative(d=16, depth=1, heads=2, mixing="concatenated", length=64, vocab=11),
)
