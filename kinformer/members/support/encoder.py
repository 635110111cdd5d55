"""Encoder stack as in BERT: tokens read earlier and later tokens."""

from collections.abc import Callable

from kinformer.core.bias import Bias
from kinformer.core.layer import Layer
from kinformer.core.pattern import Pattern
from kinformer.members.support.window_sizes import one_per_layer
from kinformer.members.support.wiring import Wiring
from kinformer.nn.depth.random_keys import RandomKeys
from kinformer.nn.depth.stack import Stack
from kinformer.nn.feedforward.mlp import MLP


def encoder(
    wiring: Wiring,
    depth: int,
    pattern: str | Pattern | tuple[str | Pattern, ...],
    dropout: float,
    random_keys: int = 0,
    bias: Callable[[], Bias] | None = None,
    hidden: int | None = None,
) -> Stack:
    """Build a stack of `depth` encoder blocks.

    wiring: positions, norms and heads of the blocks.
    depth: number of blocks.
    pattern: pattern of all blocks, or a tuple with one pattern per block from the bottom.
    dropout: dropout probability of attention weights.
    random_keys: number of random keys that each head of each block reads in addition.
    bias: function that makes a further bias of attention scores, in addition to the bias of positions.
    hidden: width of the feed-forward layers; 4 d if None.
    """
    patterns: tuple[str | Pattern, ...] = one_per_layer("pattern", pattern, depth)
    attentions = [wiring.attention(pattern, dropout=dropout, bias=bias and bias()) for pattern in patterns]
    blocks: list[Layer] = [wiring.block(attention, MLP(wiring.d, hidden)) for attention in attentions]
    return wiring.stack(
        [RandomKeys(block, random_keys, seed=n) for n, block in enumerate(blocks)] if random_keys else blocks
    )
