"""Collaborative heads: a decoder whose heads share one query and one key matrix."""

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


@member
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

    Choose it over `gpt` for fewer parameters and a smaller cache: heads weigh `shared` columns of queries and keys in
    place of having their own. A pair costs heads x shared products in place of d, so it saves time in what is projected
    alone, unless `shared` is below d / heads. The paper replaces attention in BERT, in translation and in vision; the
    blocks here are those of `gpt`. `Collaborative.from_trained` turns the projection of a trained gpt layer into one.

    d: the width of the model.
    depth: blocks.
    heads: heads of attention.
    head_dim: the width of a head's values; d / heads unless given. Queries and keys have `shared` columns.
    shared: columns of queries and keys; d / 4 unless given, with which the paper loses nothing in translation.
    mixing, scale, content: as in `projections.collaborative.Collaborative`.
    pattern: the expression of who reads whom, such as "Causal() & Band(64)", in every block.
    length: the longest row it can read.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
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
