"""Since: each query reads no key before a given position."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import check_position_table
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Since(Pattern):
    """Lower limit of keys: no query reads keys before a position that is given for this query.

    j >= first[b, i]

    Here b is the row of the batch, i the query and j the key. Choose it for episodes or documents that start in the
    middle of a row. Pass it as `Context(only=Since(first))`. If `first` decreases along a row, more blocks of pairs
    than necessary are computed under a mask.

    first: for each query position the earliest key position that it reads [B P]; queries from position P on read
        nothing.
    """

    first: Int[Tensor, "B P"]

    def __post_init__(self) -> None:
        check_position_table("Since.first", self.first)

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        last = self.first.shape[1] - 1
        return torch.as_tensor(k >= self.first[b, torch.as_tensor(q).clamp(max=last)]) & torch.as_tensor(q <= last)

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        # earliest[q] is the least limit of queries from q on, latest[q] the greatest of queries up to q
        last = self.first.shape[1] - 1
        earliest, latest = self.first.flip(1).cummin(1).values.flip(1), self.first.cummax(1).values
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        any_pair = k_hi + at >= earliest[:, (q_lo + at).clamp_max(last)]
        every_pair = k_lo + at >= latest[:, (q_hi + at).clamp_max(last)]
        return any_pair.any(0) & (q_lo + at <= last), every_pair.all(0) & (q_hi + at <= last)


EXAMPLES = (Since(torch.tensor([[0] * 6 + [6] * 58] * 8)), Since((torch.arange(64) // 3 * 3).expand(8, -1)))
