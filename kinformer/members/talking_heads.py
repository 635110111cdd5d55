"""Talking heads: a decoder whose heads hear each other before and after the softmax."""

from kinformer.aggregations.out_projection import OutProjection
from kinformer.attention import Attention
from kinformer.blocks.pre_norm import PreNorm
from kinformer.core.checks import at_least, multiple
from kinformer.core.expression import parse
from kinformer.depth.stack import Stack
from kinformer.discover import member
from kinformer.feedforward.mlp import MLP
from kinformer.mechanisms.explicit import Explicit
from kinformer.mechanisms.talking_heads import MixHeads
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.norms.layer import LayerNorm
from kinformer.positions.learned import Learned
from kinformer.projections.qkv import QKV


@member
def talking_heads(
    d: int = 128, depth: int = 5, heads: int = 4, softmax_heads: int | None = None, value_heads: int | None = None,
    bias: bool = False, pattern: str = "Causal()", length: int = 1024, vocab: int = 256, dropout: float = 0.0
) -> LM:
    """Talking-heads attention (Shazeer et al., 2020, arXiv:2003.02436), as a decoder.

    Choose it over `gpt` to use many narrow heads, at a price: it holds every head's matrix of scores, so memory grows
    with the square of a row. The paper puts it into T5, an encoder with a decoder; the blocks here are those of `gpt`.

    d: the width of the model.
    depth: blocks.
    heads: heads of queries and keys, the paper's h_k, each d / heads wide.
    softmax_heads: heads in which the softmax is taken, h; `heads` unless given.
    value_heads: heads of values, h_v, each d / value_heads wide; `heads` unless given.
    bias: adds a number per head to each mix, as CaiT does (Touvron et al., 2021, arXiv:2103.17239).
    pattern: the expression of who reads whom, such as "Causal() & Band(64)", in every block.
    length: the longest row it can read.
    vocab: tokens there are.
    dropout: the share of numbers dropped in training.
    """
    between = heads if softmax_heads is None else softmax_heads
    values = heads if value_heads is None else value_heads
    v_dim = multiple("d", d, "value_heads", values) // values

    def block() -> PreNorm:
        before, after = MixHeads(heads, between, bias=bias), MixHeads(between, values, bias=bias)
        mechanism = Explicit(parse(pattern), before=before, after=after, dropout=dropout)
        projection = QKV(d, heads, value_heads=values, v_dim=v_dim)
        attention = Attention(projection, mechanism, aggregation=OutProjection(values, v_dim, d))
        return PreNorm(attention, MLP(d, activation="gelu_tanh"), dropout=dropout)

    body = Stack([block() for _ in range(at_least("depth", depth, 1))], LayerNorm(d))
    return LM(vocab, d, body, position=Learned(d, length), std=tied_start(d), dropout=dropout)


EXAMPLES = (
    lambda: talking_heads(d=16, depth=2, heads=2, length=64, vocab=11),
    lambda: talking_heads(d=16, depth=1, heads=2, softmax_heads=3, value_heads=4, bias=True, length=64, vocab=11),
)
