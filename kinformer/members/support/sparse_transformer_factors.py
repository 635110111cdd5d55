"""Patterns of the Sparse Transformer for each layer and head, and its initial weights."""

import math
from functools import reduce
from typing import Literal

from torch import nn

from kinformer.core.checks import check_at_least, check_in_range, check_option
from kinformer.core.pattern import Heads, Or, Pattern
from kinformer.core.patterns.causal import Causal
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.feedforward.mlp import MLP
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.columns import Columns
from kinformer.nn.patterns.dilated import Dilated
from kinformer.nn.patterns.strided import Strided

Sets = Literal["strided", "fixed"]
Use = Literal["interleaved", "merged", "heads"]
Window = Literal["paper", "code"]
Factor = tuple[Pattern, ...]  # one pattern for all heads, or one for each head with its own sub-block


def factor_patterns(
    attention: Sets, stride: int, summary: int, sub_blocks: int, factors: int, window: Window
) -> list[Factor]:
    """Return the patterns A1 to Ap of the Sparse Transformer, which together reach all earlier tokens.

    They are strides of powers of l, or the last positions of blocks of such sizes.

    attention: "strided" or "fixed".
    stride: l, the stride or the block size.
    summary: number of positions at the end of each block that later blocks read, in "fixed".
    sub_blocks: number of choices of these last positions, each further from the end of the block; heads take them in
        turn.
    factors: p, the number of patterns; 1 is full causal attention.
    window: nearest keys of "strided": `stride` keys before a token in the "paper", one fewer in the "code".
    """
    (
        check_at_least("factors", factors, 1),
        check_at_least("sub_blocks", sub_blocks, 1),
        check_at_least("stride", stride, 1),
    )
    check_option("attention", attention, Sets), check_option("window", window, Window)
    if factors == 1:
        return [(Causal(),)]
    sizes = [stride**n for n in range(factors)]
    if attention == "strided":
        far = stride - (window == "code")
        strided = [Band(far), *(Dilated(far, size) for size in sizes[1:-1]), Strided(sizes[-1])]
        return [(Causal() & pattern,) for pattern in strided]

    def ends(size: int) -> Factor:
        return tuple(Causal() & Columns(size, summary, n * summary) for n in range(sub_blocks))

    inner = [tuple(pattern & Block(size * stride) for pattern in ends(size)) for size in sizes[1:-1]]
    return [(Causal() & Block(stride),), *inner, ends(sizes[-1])]


def layer_patterns(factors: list[Factor], use: Use, depth: int) -> list[Pattern]:
    """Return the pattern of each layer, from the bottom.

    factors: patterns A1 to Ap, the result of `factor_patterns`.
    use: "interleaved" uses one pattern per layer in turn, "merged" their union in each layer, and "heads" one pattern
        per head in turn.
    depth: number of layers.
    """
    turns = range(max(map(len, factors)))
    merged = tuple(reduce(Or, (factor[n % len(factor)] for factor in factors)) for n in turns)
    heads = tuple(factor[n % len(factor)] for n in turns for factor in factors)
    of = {"interleaved": factors, "merged": [merged], "heads": [heads]}[check_option("use", use, Use)]
    patterns = [factor[0] if len(factor) == 1 else Heads(*factor) for factor in of]
    return [patterns[n % len(patterns)] for n in range(check_at_least("depth", depth, 1))]


def init_weights(body: nn.Module, gain: float, depth: int) -> None:
    """Set the initial weights of the paper, with which each sublayer adds little to its input.

    The last matrix of each sublayer is smaller by a factor of sqrt(2 depth). Biases are 0.

    body: layers to change.
    gain: standard deviation of the weights times the square root of the input width.
    depth: number of layers.
    """
    check_in_range("gain", gain, 0, math.inf, open_end=True)
    for part in body.modules():
        last = part.down if isinstance(part, MLP) else part.linear if isinstance(part, OutProjection) else None
        for linear in (child for child in part.children() if isinstance(child, nn.Linear)):
            smaller = math.sqrt(2 * depth) if linear is last else 1.0
            nn.init.normal_(linear.weight, std=gain / math.sqrt(linear.in_features) / smaller)
            nn.init.zeros_(linear.bias)
