"""Tokens: a few keys that every query reads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_at_least, check_whole_numbers
from kinformer.core.layout import GatheredKeys, Layout
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Tokens(Pattern):
    """Global keys: every query reads the first n keys, or the keys at given positions.

    j < n, or j is in n

    Choose it for global tokens that all queries may read. With `Rows(n)`, these tokens also read every key.

    n: number of keys at the front, or a tuple of their positions.

    Source: Beltagy et al., 2020, arXiv:2004.05150; 'global attention' in Lin et al., 2021, arXiv:2106.04554.
    """

    n: int | tuple[int, ...]

    def __post_init__(self) -> None:
        check_token_positions("Tokens.n", self.n)

    @property
    def marked_positions(self) -> tuple[int, ...]:
        return marked_positions(self.n)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return is_any_of(k, self.n)

    @property
    def layout(self) -> Layout:
        return GatheredKeys(self.marked_positions)

    def reach(self) -> tuple[float, float]:
        return (torch.inf, max(self.marked_positions)) if self.marked_positions else (0, 0)

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return is_any_of(k, self.n)

    def capacity(self, length: int) -> int:
        return sum(position < length for position in self.marked_positions)

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        return some_or_every(k_lo + at, k_hi + at, self.marked_positions)


def check_token_positions(name: str, n: int | tuple[int, ...]) -> None:
    """Raise ValueError if n is neither a number of positions nor a tuple of positions.

    name: name of the argument, for the message.
    n: argument to check.
    """
    if isinstance(n, tuple):
        check_whole_numbers(name, n, 0)
    else:
        check_at_least(name, n, 0)


def marked_positions(n: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the positions that n stands for: 0 .. n - 1, or the given ones, sorted without repetition."""
    return tuple(range(n)) if isinstance(n, int) else tuple(sorted(set(n)))


def is_any_of(x: Index, n: int | tuple[int, ...]) -> Tensor:
    """Return whether x is below the number n, or is one of the positions n."""
    if isinstance(n, int):
        return torch.as_tensor(x < n)
    is_among = torch.as_tensor(x < 0)
    for position in n:
        is_among = is_among | (x == position)
    return is_among


def some_or_every(lo: Tensor, hi: Tensor, marked: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return whether any position of lo..hi is one of `marked`, and whether all of them are."""
    at = torch.tensor(marked, dtype=lo.dtype, device=lo.device)
    count = torch.searchsorted(at, hi.contiguous(), right=True) - torch.searchsorted(at, lo.contiguous())
    return count > 0, count == hi - lo + 1


EXAMPLES = (Tokens(2), Tokens((0, 5)))
