"""Tree: a binary tree of spans over the tokens of a row, with nodes numbered in post-order.

Token i is the leaf (0, i); the span (m, x) holds the 2^m tokens from x 2^m on. In post-order a span follows its last
token: 0, 1, (0-1), 2, 3, (2-3), (0-3), .. So the position of a node depends neither on later tokens nor on the length
of the row.
"""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

HIGHEST = 31  # the highest level: positions are below 2^32


class Node(NamedTuple):
    """A node of the tree of spans: the span of 2^m tokens from token x 2^m on.

    level: the level m of the node.
    number: the number x of the node among the nodes of its level, from 0.
    """

    level: Int[Tensor, "..."]
    number: Int[Tensor, "..."]

    @property
    def end(self) -> Int[Tensor, "..."]:
        """The index of the first token after the span."""
        return (self.number + 1) << self.level


def leaf(token: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return the position of a token in the post-order of all nodes: the number of nodes before it.

    token: the token's index in the row.
    """
    position = token.clone()
    for level in range(1, HIGHEST + 1):
        position = position + (token >> level)
    return position


def node(position: Int[Tensor, "..."]) -> Node:
    """Return the tree node with a given number in post-order: a span of 2^level tokens.

    position: number of the node, if the nodes of the tree are counted in post-order (children before their parent).
    """
    rest, first = position, torch.zeros_like(position)
    for m in range(HIGHEST, 0, -1):
        half = 2**m - 1  # nodes of a span of level m - 1; two such spans lie below a root
        right = (rest >= half) & (rest < 2 * half)
        first = first + right * (half + 1 >> 1)
        rest = rest - right * half
    # a root of level m follows 2^(m+1) - 2 nodes
    level = (rest + 2).double().log2().round().to(position.dtype).clamp_min(1) - 1
    return Node(level, first >> level)


def first_span_after(token: Int[Tensor, "..."], k: int, level: Int[Tensor, "..."] | int) -> Int[Tensor, "..."]:
    """Return the number of the first span of a level that a token reads after itself.

    The token reads the spans of this level from this number to 2 first_span_after(token, k, level + 1) - 1. After them
    it reads the longer spans of the next level.

    token: the token's index.
    k: the number of spans that a token reads on each level.
    level: the level of the span.
    """
    size = torch.ones_like(token) << level
    return (token + 1 + k * (size - 1) + (size >> 1)) >> level


def end_of_spans_before(token: Int[Tensor, "..."], k: int, level: Int[Tensor, "..."] | int) -> Int[Tensor, "..."]:
    """Return the number after the last span of a level that a token reads before itself.

    The token reads the spans of this level from number 2 end_of_spans_before(token, k, level + 1) up to, but not
    including, this number. Before them it reads the longer spans of the next level.

    token: the token's index.
    k: the number of spans that a token reads on each level.
    level: the level of the spans.
    """
    size = torch.ones_like(token) << level
    return (token - k * (size - 1) + ((size >> 1) - 1).clamp_min(0)) >> level


def edge(asks: Node, target: Node, k: int, clip: int) -> Int[Tensor, "..."]:
    """Return the type of the edge from a node to a node that it reads.

    Types are numbers from 0 to (2 k + 1) (clip + 1) - 1. The type is (2 k + 1) min(step, clip), plus 2 a + 1 for the
    a-th span before a token in a step, or 2 a + 2 for the a-th span after it. Step m reads k spans of level m. The
    first of them has level m - 1 if the spans of the previous step end in the middle of a span of level m. If a span
    reads its tokens, the type is (2 k + 1) min(level of the span, clip); if a token reads itself, it is 0.

    asks: the node that reads.
    target: the node that is read.
    k: the number of spans that a token reads on each level, on each side.
    clip: the largest step with types of its own.
    """
    token, level, size = asks.number, target.level, torch.ones_like(target.level) << target.level
    later = target.number - ((token + 1 + k * (size - 1)) >> level)
    earlier = -((k * (size - 1) - token) >> level) - 1 - target.number
    before = target.end <= token
    nth = torch.where(before, earlier, later)
    step, nth = level + (nth >= k), torch.where(nth >= k, 0, nth)
    of_token = (2 * k + 1) * step.clamp_max(clip) + torch.where(before, 2 * nth + 1, 2 * nth + 2)
    itself = (asks.level > 0) | ((level == 0) & (target.number == token))
    return torch.where(itself, (2 * k + 1) * asks.level.clamp_max(clip), of_token).clamp(
        0, (2 * k + 1) * (clip + 1) - 1
    )
