"""BySlots, ByTokens: where compressed states stand among the positions that a layer's pattern and bias see."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Int
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_at_least
from kinformer.core.example import Example


class CompressedPositions(nn.Module, ABC):
    """Where a compressed state stands. `limits` says whether a batch's limits hold for what was compressed."""

    limits: bool

    @abstractmethod
    def lookback(self, compressed: int, rate: int, length: int) -> int:
        """How many positions before the memory all compressed states together take."""

    @abstractmethod
    def forward(self, pos: Int[Tensor, "B C"], first: Int[Tensor, "B 1"]) -> Int[Tensor, "B C"]:
        """The places of states, oldest first, whose first tokens stood at `pos` (-1: none), before position `first`."""


class BySlots(CompressedPositions):
    """Slot after slot right before the memory, as the paper counts: a slot is one position, whatever is in it.

    Choose it for the paper's distances and the shorter range of a relative bias. Slots move at a segment's end, so no
    pattern of tokens can be asked about them: a batch's `ctx.only` is refused. Source: Rae et al., 2019,
    arXiv:1911.05507, section 3.
    """

    limits = False

    def lookback(self, compressed: int, rate: int, length: int) -> int:
        return check_at_least("compressed", compressed, 0)

    def forward(self, pos: Int[Tensor, "B C"], first: Int[Tensor, "B 1"]) -> Int[Tensor, "B C"]:
        real = pos >= 0
        newer = real.flip(1).cumsum(1).flip(1)  # how many slots there are from this one on
        return torch.where(real, first - newer, -1)


class ByTokens(CompressedPositions):
    """At the position of its first token, for good: distances are in tokens, and so a batch's limits hold.

    Choose it where documents are packed into rows or episodes begin in their middle. The pattern reaches back `rate`
    positions for each slot, in whole segments. It is this package's own form.
    """

    limits = True

    def lookback(self, compressed: int, rate: int, length: int) -> int:
        # the slots of one segment may all be made of its last states, or all of its first
        return -(-rate * check_at_least("compressed", compressed, 0) // length) * length

    def forward(self, pos: Int[Tensor, "B C"], first: Int[Tensor, "B 1"]) -> Int[Tensor, "B C"]:
        return pos


def _example(places: CompressedPositions):  # type: ignore[no-untyped-def]

    return kf.Compressive(4, 5, 3, kf.MeanPool(2), places=places)


CUTS = (
    "a row is cut where a segment ends, so that what follows reads what was compressed there: positions are looked at"
)
EXAMPLES = (
    Example(lambda: _example(BySlots()), breaks={"compiles": CUTS}),
    Example(lambda: _example(ByTokens()), breaks={"compiles": CUTS}),
)
