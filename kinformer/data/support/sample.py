"""Samples: which rows or stretches of a split are measured, where not all of them are.

A sample follows from the sizes of what is there and from the limit alone: it is the same for every model, in every
process and after a resume.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

GOLDEN = (5**0.5 - 1) / 2
Row = TypeVar("Row")


def spread_order(count: int) -> Int[Tensor, " count"]:
    """Numbers from 0 to count - 1 in an order of which any first ones lie evenly among all.

    They are sorted by the fractional part of their multiples of the golden ratio.
    """
    return (torch.arange(count, dtype=torch.float64) * GOLDEN % 1).argsort()


def sampled_rows(rows: Sequence[Row], sizes: Sequence[int], limit: int) -> list[Row]:
    """Rows from all over, in their own order: as many as `limit` bytes hold, and at least one; all where it holds all.

    A larger limit adds rows and takes none away.
    """
    order = spread_order(len(rows))
    ends = torch.tensor(sizes, dtype=torch.long)[order].cumsum(0)
    count = max(1, int((ends <= limit).sum()))
    return [rows[number] for number in order[:count].sort().values.tolist()]
