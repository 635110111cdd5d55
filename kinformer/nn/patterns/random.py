"""Random: a few random earlier blocks of keys for each block of queries."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least, check_flag, check_whole_number
from kinformer.core.pattern import Index, Pattern

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Random(Pattern):
    """BigBird's random blocks: each block of queries reads `keys` random blocks up to its own.

    The blocks differ from each other and are chosen from first .. i // block - back, where i is the query. A query
    block that has no more than `keys` blocks to choose from reads them all. The choice follows by integer arithmetic
    from seed, head, query block and the number of the choice. It is therefore the same on every machine, for every
    length and every chunk, and is not stored in checkpoints.

    Choose it beside a window and global tokens, to shorten the paths between far tokens. For encoders, `RandomKeys`
    chooses the same number of blocks for all queries, from whole rows.

    keys: number of random blocks for each query block.
    block: number of positions in a block.
    seed: seed of the random choice.
    symmetric: True lets each block also be read by the blocks that it chose, for encoders: if block 9 chose block 2,
        queries of block 2 read block 9. Earlier queries then read more blocks, because a pattern does not know the end
        of a row. With n blocks, block i reads about keys * (1 + ln(n / i)) blocks. If keys=3 and n=1,024, these are 19,
        10 and 3 for i = 5, 100 and 1,000.
    first, back: limits of the choice: no block before `first`, and none of the last `back` blocks up to the query's.
        They leave out blocks that are read anyway, as global tokens or in a window. A decoder may use `Causal() &
        (Block(64, 2) | Tokens(64) | Random(3, 64, first=1, back=3))`, and an encoder `Block(64, 1, 1) | Tokens(64) |
        Rows(64) | Random(3, 64, symmetric=True, first=1, back=2)`.
    head: index of the head whose random blocks all heads read; None gives each head its own.

    Source: Zaheer et al., 2020, arXiv:2007.14062, section 2.

    Differences: the published code chooses from a fixed range of blocks on both sides of the query; see
    `PublishedRandom`.
    """

    keys: int
    block: int = 1
    seed: int = 0
    symmetric: bool = False
    first: int = 0
    back: int = 0
    head: int | None = None

    def __post_init__(self) -> None:
        least = (("keys", self.keys, 1), ("block", self.block, 1), ("first", self.first, 0), ("back", self.back, 0))
        for name, value, lowest in least:
            check_at_least(f"Random.{name}", value, lowest)
        check_whole_number("Random.seed", self.seed)
        check_flag("Random.symmetric", self.symmetric)
        check_at_least("Random.head", 0 if self.head is None else self.head, 0)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        row, column = torch.as_tensor(q) // self.block, torch.as_tensor(k) // self.block
        h = h if self.head is None else self.head
        allowed = is_any_of(column, self.draw_blocks(h, row))
        return allowed | is_any_of(row, self.draw_blocks(h, column)) if self.symmetric else allowed

    def draw_blocks(self, h: Index, row: Tensor) -> list[Tensor]:
        """Return the random blocks that query block `row` reads, one tensor for each of them; -1 for none."""
        numbers = draws(self.keys, self.seed, h, row, row - self.back - self.first + 1)
        return [torch.where(number < 0, -1, number + self.first) for number in numbers]

    def of_head(self, h: int) -> Pattern:
        return replace(self, head=h) if self.head is None else self

    def reach(self) -> tuple[float, float]:
        ahead = self.block - 1 - self.back * self.block
        return torch.inf, torch.inf if self.symmetric else ahead

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        top, bottom, left, right = (torch.as_tensor(end) // self.block for end in (q_lo, q_hi, k_lo, k_hi))
        if self.head is not None:
            draw = partial(self.draw_blocks, self.head)
            count = count_drawn(draw, top, bottom, left, right)
            if self.symmetric:  # count a block that drew itself only once
                count = count + count_drawn(draw, left, right, top, bottom, itself=False)
            return of_all(count, top, bottom, left, right)
        any_pair, every_pair = self._by_any(top, bottom, left, right)
        if self.symmetric:
            some2, every2 = self._by_any(left, right, top, bottom)
            lowest, highest = torch.minimum(top, left), torch.maximum(bottom, right)
            has_all = (lowest >= self.first) & (highest < self.first + self.keys) & (self.back == 0)
            any_pair, every_pair = any_pair | some2, every_pair | every2 | has_all
        return any_pair, every_pair

    def _by_any(self, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether a head may read any pair, and whether every head surely reads all, as `cover` does.

        A head may draw any block; it surely draws all blocks if there are no more than `keys`.
        """
        any_pair = left.clamp_min(self.first) <= torch.minimum(right, bottom - self.back)
        few = bottom < self.first + self.back + self.keys
        return any_pair, (left >= self.first) & (right <= top - self.back) & few


def draws(keys: int, seed: int, h: Index, row: Index, count: Index) -> list[Tensor]:
    """Return `keys` different random numbers from 0 .. count - 1 for each query block, a tensor for each.

    If count is at most `keys`, the result has all of these numbers, and then -1. Floyd's method avoids repetition:
    number n is uniform in 0..top, where top grows by 1 with n, and a number that was chosen before is replaced by top
    itself.

    keys: number of random numbers.
    seed, h, row: seed, head and query blocks, which determine the numbers.
    count: number of numbers to choose from.
    """
    chosen: list[Tensor] = []
    last = torch.as_tensor(count) - 1
    for n in range(keys):
        top = last - keys + 1 + n
        candidate = torch.as_tensor(_mix(seed, h, row, n) % (top * (top > 0) + 1))
        for earlier in chosen:
            candidate = torch.where(candidate == earlier, top, candidate)
        chosen.append(candidate)
    return [torch.where(last >= keys, number, torch.where(last >= n, n, -1)) for n, number in enumerate(chosen)]


def is_any_of(x: Tensor, numbers: list[Tensor]) -> Tensor:
    """Return whether x equals any of the numbers, place by place."""
    return reduce(operator.or_, (x == number for number in numbers))


Draw = Callable[[Tensor], list[Tensor]]  # from query blocks to the blocks that they draw


def count_drawn(draw: Draw, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor, itself: bool = True) -> Tensor:
    """Count the random choices of query blocks top..bottom that fall into key blocks left..right.

    The function waits for the device once, to learn the largest number of query blocks.

    draw: function that returns the random blocks of query blocks.
    top, bottom, left, right: first and last query blocks, first and last key blocks.
    itself: False leaves out blocks that chose themselves.
    """
    count = torch.zeros((), dtype=torch.long, device=top.device)
    for step in range(int((bottom - top).max()) + 1):
        row = top + step
        for column in draw(row):
            inside = (row <= bottom) & (left <= column) & (column <= right)
            count = count + (inside if itself else inside & (column != row))
    return count


def of_all(count: Tensor, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether some and whether all pairs of query blocks and key blocks are read.

    count: number of pairs that are read.
    top, bottom, left, right: first and last query blocks, first and last key blocks.
    """
    return count > 0, count == (bottom - top + 1) * (right - left + 1)


def _mix(seed: int, head: Index, row: Index, draw: int) -> Index:
    """Return a 32-bit hash of four numbers.

    It is a chain of multiplications and xor-shifts, and every product fits into 64 bits.
    """
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
    Random(2, block=2, head=1),
    Random(3, symmetric=True, first=1, head=0),
)
