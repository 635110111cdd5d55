"""The stack of BERT, which reads a row both ways."""

from kinformer.depth.stack import Stack
from kinformer.feedforward.mlp import MLP
from kinformer.members.support.windows import each
from kinformer.members.support.wiring import Wiring


def encoder(made: Wiring, depth: int, pattern: str | tuple[str, ...], dropout: float) -> Stack:
    """`depth` blocks that read a row under a pattern; a tuple has one for each of them, from the bottom."""
    attentions = [made.attention(one, dropout=dropout) for one in each("pattern", pattern, depth)]
    return made.stack(made.block(attention, MLP(made.d)) for attention in attentions)
