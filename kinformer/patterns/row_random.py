"""RowRandom: random blocks from all of a row, on both sides of the query, as many for each."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import at_least, whole
from kinformer.core.pattern import Index, Pattern
from kinformer.patterns.published_random import beside
from kinformer.patterns.random import among
from kinformer.patterns.tail import one_each


@dataclass(frozen=True, eq=False, repr=False)
class RowRandom(Pattern):
    """Block j // block is among `keys` blocks drawn without repetition from first .. blocks[b] - 1 beside the window.

    Every query of a row reads as many, all where no more are left, wherever the row ends. Keyed by (seed, head, query
    block, number of the draw) and the number of blocks in integer arithmetic, so it is the same on every machine, and
    nothing of it is kept. Pass it as `Context(also=...)`; `RandomKeys` makes it of whole rows.

    blocks: how many blocks of each row may be drawn from.
    keys: how many blocks a query block draws.
    block: positions of a block.
    seed: of the draw.
    first: blocks at the front that are read anyway, and so are not drawn.
    window: blocks on either side of the own one that are read anyway; -1 where it may draw itself.
    head: every head draws as this one does; unless given, each for itself.

    Source: the atomic random pattern of Lin et al., 2021, arXiv:2106.04554, section 4.1.1.
    """

    blocks: Int[Tensor, "B 1"]
    keys: int
    block: int = 1
    seed: int = 0
    first: int = 0
    window: int = -1
    head: int | None = None

    def __post_init__(self) -> None:
        one_each("RowRandom.blocks", self.blocks)
        least = (
            ("keys", self.keys, 1),
            ("block", self.block, 1),
            ("first", self.first, 0),
            ("window", self.window, -1),
        )
        for name, value, lowest in least:
            at_least(f"RowRandom.{name}", value, lowest)
        whole("RowRandom.seed", self.seed)
        at_least("RowRandom.head", 0 if self.head is None else self.head, 0)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        row, column = torch.as_tensor(q) // self.block, torch.as_tensor(k) // self.block
        h = h if self.head is None else self.head
        return among(column, beside(self.keys, self.seed, h, row, self.first, self.blocks[b, 0], self.window))

    def of_head(self, h: int) -> Pattern:
        return replace(self, head=h) if self.head is None else self

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        top, bottom, left, right = (torch.as_tensor(end) // self.block for end in (q_lo, q_hi, k_lo, k_hi))
        first, last = left.clamp_min(self.first), torch.minimum(right, self.blocks.amax() - 1)
        some = (first <= last) & (torch.maximum(bottom - first, last - top) > self.window)
        return some, some & False


_BLOCKS = torch.tensor([[6], [21], [64], [1]] * 2)
EXAMPLES = (RowRandom(_BLOCKS, 2), RowRandom(_BLOCKS, 2, block=3, seed=5, first=1, window=1), RowRandom(_BLOCKS, 9))
