"""Random: a few random blocks of the past for each query block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import a_flag, at_least, whole
from kinformer.core.pattern import Index, Pattern

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Random(Pattern):
    """Block j // block is among `keys` blocks drawn without repetition from 0 .. i // block: BigBird's random blocks.

    The draw is keyed by (seed, head, query block, number of the draw) in integer arithmetic, so it is the same on
    every machine, for every length and every chunk, and a checkpoint keeps it by its numbers. A query block with no
    more than `keys` blocks to draw from reads them all. The published code draws from a fixed run of blocks on both
    sides instead, see PublishedRandom.

    keys: how many blocks a query block draws.
    block: positions of a block.
    seed: of the draw.
    symmetric: whether a key block also reads the query blocks that drew it, for encoders.
    first, back: draw from first .. i // block - back alone, and so no block that global tokens or a window hold
        already: `Causal() & (Block(64, 2) | Tokens(64) | Random(3, 64, first=1, back=3))`; for an encoder
        `Block(64, 1, 1) | Tokens(64) | Rows(64) | Random(3, 64, symmetric=True, first=1, back=2)`.

    Source: Zaheer et al., 2020, arXiv:2007.14062, section 2.
    """

    keys: int
    block: int = 1
    seed: int = 0
    symmetric: bool = False
    first: int = 0
    back: int = 0

    def __post_init__(self) -> None:
        least = (("keys", self.keys, 1), ("block", self.block, 1), ("first", self.first, 0), ("back", self.back, 0))
        for name, value, lowest in least:
            at_least(f"Random.{name}", value, lowest)
        whole("Random.seed", self.seed)
        a_flag("Random.symmetric", self.symmetric)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        row, column = q // self.block, k // self.block
        drawn = self._drawn(h, row, column)
        return drawn | self._drawn(h, column, row) if self.symmetric else drawn

    def _drawn(self, h: Index, row: Index, column: Index) -> Tensor:
        return drawn(self.keys, self.seed, h, row, column - self.first, row - self.back - self.first + 1)

    def reach(self) -> tuple[float, float]:
        ahead = self.block - 1 - self.back * self.block
        return torch.inf, torch.inf if self.symmetric else ahead


def drawn(keys: int, seed: int, h: Index, row: Index, among: Index, count: Index) -> Tensor:
    """Is `among` one of the `keys` numbers that a query block draws from 0 .. count - 1? All of them where no more are.

    Floyd's draw without repetition: number n is uniform in 0..top; one that is taken already is replaced by top itself.
    """
    chosen: list[Tensor] = []
    last = torch.as_tensor(count) - 1
    found = torch.as_tensor((among >= 0) & (among <= last) & (last < keys))
    for n in range(keys):
        top = last - keys + 1 + n
        number = torch.as_tensor(_mix(seed, h, row, n) % (top * (top > 0) + 1))
        for earlier in chosen:
            number = torch.where(number == earlier, top, number)
        chosen.append(number)
        found = found | ((among == number) & (last >= keys))
    return found


def _mix(seed: int, head: Index, row: Index, draw: int) -> Index:
    """A 32-bit number from four, by a multiply and xor-shift chain whose every product fits 64 bits."""
    x: Index = (seed * 0x9E3779B1 + draw * 0x85EBCA6B + 0x165667B1) & _MASK
    for value in (head, row):
        x = ((x ^ (value + 0x27D4EB2F)) * 0x45D9F3B) & _MASK
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & _MASK
        x = x ^ (x >> 16)
    return x


EXAMPLES = (
    Random(2),
    Random(2, block=3, seed=5),
    Random(1, block=2, symmetric=True),
    Random(2, block=2, first=1, back=2),
)
