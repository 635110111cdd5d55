"""PublishedRandom: BigBird's random blocks as its published code chooses them."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least, check_whole_number
from kinformer.core.pattern import Index, Pattern
from kinformer.nn.patterns.random import count_drawn, draws, is_any_of, of_all


@dataclass(frozen=True)
class PublishedRandom(Pattern):
    """BigBird's random blocks as its published code chooses them, on both sides of the query.

    Each block of queries reads `keys` different random blocks of keys from first .. among - 1, outside its window. The
    range does not depend on the query; in a shorter row, blocks beyond its end are missing. No query reads a random
    block from `among` on, so paths to later blocks lead through global tokens. If one block reads another, the other
    need not read the first.

    Choose it to repeat the published model. `Random` chooses from all earlier blocks instead.

    keys: number of random blocks for each query block; if fewer may be chosen, it reads all of them.
    block: number of positions in a block.
    seed: seed of the random choice; the authors' code uses the number of the layer.
    among: end of the range of blocks that may be chosen; the authors' code chooses from the first 1,024 positions, 16
        blocks of 64.
    first: number of blocks at the front that are global, and so are not chosen.
    window: number of blocks on either side of the query's block that are read anyway, and so are not chosen.
    head: index of the head whose random blocks all heads read; None gives each head its own.

    Source: Zaheer et al., 2020, arXiv:2007.14062, appendix D, and the authors' code.

    Differences: the random blocks follow by integer arithmetic from seed, head and query block, as in `Random`. The
    authors' code uses numpy, and so chooses other blocks.
    """

    keys: int
    block: int = 1
    seed: int = 0
    among: int = 16
    first: int = 1
    window: int = 1
    head: int | None = None

    def __post_init__(self) -> None:
        least = (("keys", self.keys, 1), ("block", self.block, 1), ("first", self.first, 0), ("window", self.window, 0))
        for name, value, lowest in least:
            check_at_least(f"PublishedRandom.{name}", value, lowest)
        check_at_least("PublishedRandom.among", self.among, self.first + 1)
        check_whole_number("PublishedRandom.seed", self.seed)
        check_at_least("PublishedRandom.head", 0 if self.head is None else self.head, 0)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        row, column = torch.as_tensor(q) // self.block, torch.as_tensor(k) // self.block
        return is_any_of(column, self.draw_blocks(h if self.head is None else self.head, row))

    def draw_blocks(self, h: Index, row: Tensor) -> list[Tensor]:
        """Return the random blocks that query block `row` reads, one tensor for each of them; -1 for none."""
        return draw_outside_window(self.keys, self.seed, h, row, self.first, self.among, self.window)

    def _window_size(self, row: Tensor) -> Tensor:
        return window_of(row, self.first, self.among, self.window)[1]

    def of_head(self, h: int) -> Pattern:
        return replace(self, head=h) if self.head is None else self

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return (k >= self.first * self.block) & (k < self.among * self.block)

    def capacity(self, length: int) -> int:
        return max(0, min(length, self.among * self.block) - self.first * self.block)

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        top, bottom, left, right = (torch.as_tensor(end) // self.block for end in (q_lo, q_hi, k_lo, k_hi))
        if self.head is not None:
            return of_all(
                count_drawn(partial(self.draw_blocks, self.head), top, bottom, left, right), top, bottom, left, right
            )
        # any block is drawn by some head; every head draws all blocks if no more than `keys` are left
        first, last = left.clamp_min(self.first), right.clamp_max(self.among - 1)
        any_pair = (first <= last) & (torch.maximum(bottom - first, last - top) > self.window)
        apart = (torch.maximum(top - right, left - bottom) > self.window) & (first == left) & (last == right)
        few = torch.minimum(self._window_size(top), self._window_size(bottom)) >= self.among - self.first - self.keys
        return any_pair, apart & few


def draw_outside_window(
    keys: int, seed: int, h: Index, row: Tensor, first: int, among: Index, window: int
) -> list[Tensor]:
    """Return random blocks for query blocks, from first .. among - 1 and outside their windows.

    The result has one tensor for each of the `keys` random blocks; -1 stands for no block.

    keys: number of random blocks for each query block.
    seed: seed of the random choice.
    h: head.
    row: query blocks.
    first, among: begin and end of the range of blocks.
    window: number of blocks on either side of the query's block that are not chosen; -1 allows the query's block too.
    """
    lo, gap = window_of(row, first, among, window)
    ranks = draws(keys, seed, h, row, among - first - gap)
    blocks = [torch.where(rank < 0, -1, rank + first) for rank in ranks]
    return [torch.where(column >= lo, column + gap, column) for column in blocks]


def window_of(row: Tensor, first: int, among: Index, window: int) -> tuple[Tensor, Tensor]:
    """Return the first block and the number of blocks of the window around each query block.

    row: query blocks.
    first, among: begin and end of the range of blocks; the window is cut to it.
    window: number of blocks on either side of the query's block.
    """
    lo, hi = (row - window).clamp_min(first), torch.minimum(row + window, torch.as_tensor(among) - 1)
    return lo, (hi - lo + 1).clamp_min(0)


EXAMPLES = (
    PublishedRandom(2, among=6),
    PublishedRandom(2, 2, among=7, first=0, head=1),
    PublishedRandom(3, among=5, window=0),
)
