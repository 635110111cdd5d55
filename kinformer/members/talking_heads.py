"""Talking heads: a decoder with heads that are mixed before and after the softmax."""

from typing import Literal

from kinformer.core.checks import check_at_least, check_multiple, check_option
from kinformer.core.discover import member
from kinformer.core.pattern_parser import parse
from kinformer.members.support.wiring import tied_start
from kinformer.models.lm import LM
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.talking_heads import MixHeads
from kinformer.nn.norms.layer import LayerNorm
from kinformer.nn.positions.learned import Learned
from kinformer.nn.projections.qkv import QKV

Mixes = Literal["both", "scores", "weights"]


@member(cost="L**2", needs={"softmax_heads": "mixes!=weights", "value_heads": "mixes!=scores"})
def talking_heads(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    softmax_heads: int | None = None,
    value_heads: int | None = None,
    mixes: Mixes = "both",
    bias: bool = False,
    pattern: str = "Causal()",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> LM:
    """Talking-heads attention (Shazeer et al., 2020, arXiv:2003.02436), as a decoder.

    Choose it over `gpt` to use many narrow heads, at a cost. Every head's matrix of scores is stored, so memory grows
    with the square of a row. Time grows as L^2 (d + h (h_k + h_v)).

    d: model width.
    depth: number of blocks.
    heads: number of heads of queries and keys, the paper's h_k.
    head_dim: width of a head of queries, keys and values. If None, queries and keys have d / heads, and values have
        d / value_heads.
    softmax_heads: number of heads in the softmax, h; `heads` if None.
    value_heads: number of heads of values, h_v. If None, it is `heads`, or `softmax_heads` with mixes="scores".
    mixes: where heads are mixed: before and after the softmax ("both"), or, as in the paper's ablations, only before it
        ("scores") or only after it ("weights"). The number of heads is then the same on both sides of the missing mix.
    bias: add a number per head to each mix, as CaiT does (Touvron et al., 2021, arXiv:2103.17239).
    pattern: expression for the tokens that each token reads, such as "Causal() & Band(64)", in every block.
    length: longest row in tokens.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    Differences: the paper has this attention in T5, an encoder with a decoder. The blocks here are as in `gpt`.
    """
    between = heads if softmax_heads is None else softmax_heads
    values = (
        (between if check_option("mixes", mixes, Mixes) == "scores" else heads) if value_heads is None else value_heads
    )
    if mixes == "scores" and values != between or mixes == "weights" and between != heads:
        raise ValueError(
            f"mixes={mixes!r} does not fit heads={heads}, softmax_heads={between}, value_heads={values}: with "
            "'scores', value_heads equals softmax_heads; with 'weights', softmax_heads equals heads. Change one of them"
        )
    v_dim = check_multiple("d", d, "value_heads", values) // values if head_dim is None else head_dim

    def block() -> PreNorm:
        before = None if mixes == "weights" else MixHeads(heads, between, bias=bias)
        after = None if mixes == "scores" else MixHeads(between, values, bias=bias)
        mechanism = Explicit(parse(pattern), before=before, after=after, dropout=dropout)
        projection = QKV(d, heads, value_heads=values, head_dim=head_dim, v_dim=v_dim)
        attention = Attention(projection, mechanism, aggregation=OutProjection(values, v_dim, d))
        return PreNorm(attention, MLP(d, activation="gelu_tanh"), dropout=dropout)

    body = Stack([block() for _ in range(check_at_least("depth", depth, 1))], LayerNorm(d))
    return LM(vocab, d, body, position=Learned(d, length), std=tied_start(d), dropout=dropout)


EXAMPLES = (
    lambda: talking_heads(d=16, depth=2, heads=2, length=64, vocab=11),
    lambda: talking_heads(d=16, depth=1, heads=2, softmax_heads=3, value_heads=4, bias=True, length=64, vocab=11),
    lambda: talking_heads(
        d=16, depth=1, heads=2, mixes="scores", softmax_heads=4, pattern="Causal() & Band(5)", length=64, vocab=11
    ),
    lambda: talking_heads(d=16, depth=1, heads=2, mixes="weights", value_heads=4, length=64, vocab=11),
)
