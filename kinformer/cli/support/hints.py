"""Hints: what a pattern could say more sharply of itself. Not saying it is no mistake, and costs memory or decoding."""

from collections.abc import Iterator

import torch

from kinformer.core.pattern import Pattern
from kinformer.laws.pattern import matrix

LENGTH = 64


def sharper_hints(pattern: Pattern) -> Iterator[str]:
    """A sentence for each, from what the pattern does over 64 positions; none for patterns of a batch."""
    if pattern.tensors():
        return
    read = matrix(pattern, LENGTH).any(0).any(0)
    at = torch.arange(LENGTH)
    distance = torch.where(read, at[:, None] - at, 0)
    far, ahead = int(distance.max()), -int(distance.min())
    told_far, told_ahead = pattern.reach()
    if ahead == 0 and told_ahead > 0:
        yield f"{pattern} reads nothing ahead, but reach() says {told_ahead}: as it is, it cannot be decoded by itself"
    if far < LENGTH // 2 < told_far:
        yield f"{pattern} reads {far} back at most, but reach() says {told_far}: a sharper reach() reads fewer keys"
    elif far < LENGTH // 2 and ahead == 0 and pattern.capacity(LENGTH) == LENGTH:
        yield f"{pattern} reads {far} back at most, but capacity() is the whole row: live() and capacity() can save it"
