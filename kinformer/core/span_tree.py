"""Tree: a binary tree of spans over the tokens of a row, its nodes numbered in post-order.

Token i is the leaf (0, i); the span (m, x) holds the 2^m tokens from x 2^m on. In post-order a span stands right behind
its last token, 0, 1, (0-1), 2, 3, (2-3), (0-3), .., so that a node's position depends on no later token and on no
length.
"""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

HIGHEST = 31  # levels: positions lie below 2^32


class Node(NamedTuple):
    """Level m of nodes, and their number x on it."""

    level: Int[Tensor, "..."]
    number: Int[Tensor, "..."]

    @property
    def end(self) -> Int[Tensor, "..."]:
        """The first token behind a node."""
        return (self.number + 1) << self.level


def leaf(token: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The position of a token: as many nodes come before it."""
    position = token.clone()
    for level in range(1, HIGHEST + 1):
        position = position + (token >> level)
    return position


def node(position: Int[Tensor, "..."]) -> Node:
    """The node at a position."""
    rest, first = position, torch.zeros_like(position)
    for m in range(HIGHEST, 0, -1):
        half = 2**m - 1  # nodes of a span of level m - 1, of which two lie below a root
        right = (rest >= half) & (rest < 2 * half)
        first = first + right * (half + 1 >> 1)
        rest = rest - right * half
    # a root of level m is behind 2^(m+1) - 2 nodes
    level = (rest + 2).double().log2().round().to(position.dtype).clamp_min(1) - 1
    return Node(level, first >> level)


def first_span_after(token: Int[Tensor, "..."], k: int, level: Int[Tensor, "..."] | int) -> Int[Tensor, "..."]:
    """The first span of a level that a token reads behind itself.

    The token reads the spans of the level before 2 first_span_after(.., level + 1).
    """
    size = torch.ones_like(token) << level
    return (token + 1 + k * (size - 1) + (size >> 1)) >> level


def end_of_spans_before(token: Int[Tensor, "..."], k: int, level: Int[Tensor, "..."] | int) -> Int[Tensor, "..."]:
    """The end of the spans of a level that a token reads before itself.

    The token reads the spans of the level from 2 end_of_spans_before(.., level + 1).
    """
    size = torch.ones_like(token) << level
    return (token - k * (size - 1) + ((size >> 1) - 1).clamp_min(0)) >> level


def edge(asks: Node, target: Node, k: int, clip: int) -> Int[Tensor, "..."]:
    """The type of the edge by which a node reads another, from 0 to (2 k + 1) (clip + 1) - 1.

    (2 k + 1) min(step, clip), and to that 2 a + 1 for the a-th span before a token in a step, 2 a + 2 for the a-th
    behind it. Step m reads k spans of level m, the first of which is of level m - 1 where the token's reading ended in
    the middle of one. A span reads its tokens by the type of its level, and a token itself by 0.
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
