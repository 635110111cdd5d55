"""BySlots, ByTokens: positions that a compressive memory gives its compressed states."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_at_least
from kinformer.core.example import Example
from kinformer.core.keyword_hints import KeywordHints


class CompressedPositions(nn.Module, KeywordHints, ABC):
    """Base class of rules that give positions to the compressed states of a compressive memory.

    A layer's pattern and bias use these positions. Subclasses implement `lookback` and `forward`.

    limits: whether the limits of a batch (`ctx.only`) apply to compressed states.
    """

    limits: bool

    @abstractmethod
    def lookback(self, compressed: int, rate: int, length: int) -> int:
        """Return the number of positions before the memory that the compressed states take together.

        compressed: number of compressed states.
        rate: number of tokens per compressed state.
        length: number of tokens of a segment.
        """

    @abstractmethod
    def forward(self, pos: Int[Tensor, "B C"], first: Int[Tensor, "B 1"]) -> Int[Tensor, "B C"]:
        """Return the positions of the compressed states, oldest first.

        pos: position of the first token that each state summarises; -1 if it is empty.
        first: position of the oldest state that is not compressed.
        """


class BySlots(CompressedPositions):
    """Positions of compressed states: one for each state, directly before the memory, as in the paper.

    Choose it for the distances of the paper: a compressed state counts as one token, and a relative bias needs a
    smaller range. The position of a state changes at the end of each segment, so the limits of a batch on tokens cannot
    apply: `ctx.only` is refused.

    Source: Rae et al., 2019, arXiv:1911.05507, section 3.
    """

    limits = False

    def lookback(self, compressed: int, rate: int, length: int) -> int:
        return check_at_least("compressed", compressed, 0)

    def forward(self, pos: Int[Tensor, "B C"], first: Int[Tensor, "B 1"]) -> Int[Tensor, "B C"]:
        real = pos >= 0
        newer = real.flip(1).cumsum(1).flip(1)  # number of slots from this one on
        return torch.where(real, first - newer, -1)


class ByTokens(CompressedPositions):
    """Positions of compressed states: always the position of the first token that a state summarises.

    Distances are in tokens, so a batch's limits apply. Choose it if rows contain several packed documents, or if
    episodes begin in the middle of a row. For each compressed state the pattern reaches back `rate` more positions,
    rounded up to whole segments. The paper has no such form; it is a choice of this library.
    """

    limits = True

    def lookback(self, compressed: int, rate: int, length: int) -> int:
        # all slots of one segment may come from its last states, or all from its first
        return -(-rate * check_at_least("compressed", compressed, 0) // length) * length

    def forward(self, pos: Int[Tensor, "B C"], first: Int[Tensor, "B 1"]) -> Int[Tensor, "B C"]:
        return pos


def _example(places: CompressedPositions):  # type: ignore[no-untyped-def]

    return kf.Compressive(4, 5, 3, kf.MeanPool(2), places=places)


CUTS = (
    "the row is cut at each end of a segment, so that later tokens read the compressed ones: the cuts depend on "
    "the values of positions"
)
EXAMPLES = (
    Example(lambda: _example(BySlots()), breaks={"compiles": CUTS}),
    Example(lambda: _example(ByTokens()), breaks={"compiles": CUTS}),
)
