"""The stack of BERT, which reads a row both ways."""

from kinformer.core.pattern import Pattern
from kinformer.depth.stack import Stack
from kinformer.feedforward.mlp import MLP
from kinformer.members.support.windows import each
from kinformer.members.support.wiring import Wiring


def encoder(made: Wiring, depth: int, pattern: str | Pattern | tuple[str | Pattern, ...], dropout: float) -> Stack:
    """`depth` blocks that read a row under a pattern; a tuple has one for each of them, from the bottom."""
    patterns: tuple[str | Pattern, ...] = each("pattern", pattern, depth)
    attentions = [made.attention(one, dropout=dropout) for one in patterns]
    return made.stack(made.block(attention, MLP(made.d)) for attention in attentions)
