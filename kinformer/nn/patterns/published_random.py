"""PublishedRandom: random blocks from a fixed run of blocks, on both sides of the query."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least, check_whole_number
from kinformer.core.pattern import Index, Pattern
from kinformer.nn.patterns.random import count_drawn, draws, is_any_of, of_all


@dataclass(frozen=True)
class PublishedRandom(Pattern):
    """Block j // block is among `keys` blocks drawn without repetition from first .. among - 1 beside the window.

    BigBird's draw as its code makes it: for each query block alone, so that a key block need not read who drew it, and
    from the first `among` blocks, wherever the query stands; of shorter rows only what is there. Nobody draws a later
    block, so far paths to it lead through global tokens. Choose it to repeat the published model; `Random` draws from
    all that was before. Keyed by (seed, head, query block, number of the draw) as `Random` is, so the draws themselves
    are others than numpy's.

    keys: how many blocks a query block draws; it reads all where no more are left.
    block: positions of a block.
    seed: of the draw, the number of the layer in the authors' code.
    among: how many blocks may be drawn; 16 of 64 positions are the code's first 1,024.
    first: blocks at the front that are global, and so are not drawn.
    window: blocks on either side of the own one that are read anyway, and so are not drawn.
    head: every head draws as this one does; unless given, each for itself.

    Source: Zaheer et al., 2020, arXiv:2007.14062, appendix D, and the authors' code.
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
        """The blocks that a query block draws, -1 for none: a tensor for each draw."""
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
        # by some head every block is drawn, and by each head where no more are left than it draws
        first, last = left.clamp_min(self.first), right.clamp_max(self.among - 1)
        any_pair = (first <= last) & (torch.maximum(bottom - first, last - top) > self.window)
        apart = (torch.maximum(top - right, left - bottom) > self.window) & (first == left) & (last == right)
        few = torch.minimum(self._window_size(top), self._window_size(bottom)) >= self.among - self.first - self.keys
        return any_pair, apart & few


def draw_outside_window(
    keys: int, seed: int, h: Index, row: Tensor, first: int, among: Index, window: int
) -> list[Tensor]:
    """The blocks that query blocks draw from first .. among - 1, except `window` blocks on either side; -1 for none."""
    lo, gap = window_of(row, first, among, window)
    ranks = draws(keys, seed, h, row, among - first - gap)
    blocks = [torch.where(rank < 0, -1, rank + first) for rank in ranks]
    return [torch.where(column >= lo, column + gap, column) for column in blocks]


def window_of(row: Tensor, first: int, among: Index, window: int) -> tuple[Tensor, Tensor]:
    """The first block of the window, and the number of its blocks."""
    lo, hi = (row - window).clamp_min(first), torch.minimum(row + window, torch.as_tensor(among) - 1)
    return lo, (hi - lo + 1).clamp_min(0)


EXAMPLES = (
    PublishedRandom(2, among=6),
    PublishedRandom(2, 2, among=7, first=0, head=1),
    PublishedRandom(3, among=5, window=0),
)
