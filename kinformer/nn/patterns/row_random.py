"""RowRandom: each block of queries reads the same number of random key blocks, from the whole row."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import check_at_least, check_whole_number
from kinformer.core.pattern import Index, Pattern
from kinformer.nn.patterns.published_random import draw_outside_window
from kinformer.nn.patterns.random import is_any_of
from kinformer.nn.patterns.tail import check_one_each


@dataclass(frozen=True, eq=False, repr=False)
class RowRandom(Pattern):
    """Random blocks of a row: each block of queries reads `keys` random key blocks of its whole row.

    The blocks differ from each other and are chosen from first .. blocks[b] - 1, outside the window; b is the row of
    the batch. If no more than `keys` blocks are left, the query reads all of them. The choice follows by integer
    arithmetic from seed, head, query block, number of the choice and number of blocks. It is therefore the same on
    every machine and needs no storage.

    Choose it for encoders; `Random` reads only earlier blocks and needs no length of a row. Pass it for a batch as
    `Context(also=...)`, which adds its pairs to the pattern of a layer. The wrapper `RandomKeys` does so by itself.

    blocks: end of the range of blocks of each row that may be chosen [B 1].
    keys: number of random key blocks for each query block.
    block: number of positions in a block.
    seed: seed of the random choice.
    first: number of blocks at the front that are not chosen, because every query reads them anyway.
    window: number of blocks on either side of the query's block that are not chosen, because the query reads them
        anyway; -1 allows the query's own block too.
    head: index of the head whose random blocks all heads read; None gives each head its own.

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
        check_one_each("RowRandom.blocks", self.blocks)
        least = (
            ("keys", self.keys, 1),
            ("block", self.block, 1),
            ("first", self.first, 0),
            ("window", self.window, -1),
        )
        for name, value, lowest in least:
            check_at_least(f"RowRandom.{name}", value, lowest)
        check_whole_number("RowRandom.seed", self.seed)
        check_at_least("RowRandom.head", 0 if self.head is None else self.head, 0)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        row, column = torch.as_tensor(q) // self.block, torch.as_tensor(k) // self.block
        h = h if self.head is None else self.head
        return is_any_of(
            column, draw_outside_window(self.keys, self.seed, h, row, self.first, self.blocks[b, 0], self.window)
        )

    def of_head(self, h: int) -> Pattern:
        return replace(self, head=h) if self.head is None else self

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        top, bottom, left, right = (torch.as_tensor(end) // self.block for end in (q_lo, q_hi, k_lo, k_hi))
        first, last = left.clamp_min(self.first), torch.minimum(right, self.blocks.amax() - 1)
        is_near = (first <= last) & (torch.maximum(bottom - first, last - top) > self.window)
        return is_near, is_near & False


_BLOCKS = torch.tensor([[6], [21], [64], [1]] * 2)
EXAMPLES = (RowRandom(_BLOCKS, 2), RowRandom(_BLOCKS, 2, block=3, seed=5, first=1, window=1), RowRandom(_BLOCKS, 9))
