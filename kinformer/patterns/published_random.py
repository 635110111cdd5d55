"""PublishedRandom: random blocks from a fixed run of blocks, on both sides of the query."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import at_least, whole
from kinformer.core.pattern import Index, Pattern
from kinformer.patterns.random import drawn


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

    Source: Zaheer et al., 2020, arXiv:2007.14062, appendix D, and the authors' code.
    """

    keys: int
    block: int = 1
    seed: int = 0
    among: int = 16
    first: int = 1
    window: int = 1

    def __post_init__(self) -> None:
        least = (("keys", self.keys, 1), ("block", self.block, 1), ("first", self.first, 0), ("window", self.window, 0))
        for name, value, lowest in least:
            at_least(f"PublishedRandom.{name}", value, lowest)
        at_least("PublishedRandom.among", self.among, self.first + 1)
        whole("PublishedRandom.seed", self.seed)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        row, column = torch.as_tensor(q) // self.block, torch.as_tensor(k) // self.block
        lo, hi = (row - self.window).clamp_min(self.first), (row + self.window).clamp_max(self.among - 1)
        gap = (hi - lo + 1).clamp_min(0)  # how many of the run the window holds
        rank = column - self.first - gap * (column > hi)
        free = (column >= self.first) & (column < self.among) & ((row - column).abs() > self.window)
        return drawn(self.keys, self.seed, h, row, rank, self.among - self.first - gap) & free

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return k < self.among * self.block

    def capacity(self, length: int) -> int:
        return min(length, self.among * self.block)


EXAMPLES = (PublishedRandom(2, among=6),)
