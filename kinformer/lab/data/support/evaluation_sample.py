"""Samples: chooses the rows or stretches of a split that a measurement reads.

A sample depends only on the sizes of the rows and on the limit. So it is the same for every model, in every process and
after a resume.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

GOLDEN = (5**0.5 - 1) / 2
Row = TypeVar("Row")


def spread_order(count: int) -> Int[Tensor, " count"]:
    """The numbers 0 .. count - 1 in an order whose every prefix is evenly spread.

    The sort key of a number is the fractional part of its product with the golden ratio.
    """
    return (torch.arange(count, dtype=torch.float64) * GOLDEN % 1).argsort()


def sampled_rows(rows: Sequence[Row], sizes: Sequence[int], limit: int) -> list[Row]:
    """Rows spread over all rows, in their original order: at most `limit` bytes, but at least one row.

    A larger limit only adds rows.
    """
    order = spread_order(len(rows))
    ends = torch.tensor(sizes, dtype=torch.long)[order].cumsum(0)
    count = max(1, int((ends <= limit).sum()))
    return [rows[number] for number in order[:count].sort().values.tolist()]
