"""Evaluation samples: choose the rows or stretches of a split on which a model is measured.

A sample depends only on the sizes of the rows and on the limit. It is therefore the same for every model, in every
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
    """Return the numbers 0 .. count - 1 in an order in which the first n, for any n, are evenly spread.

    The sort key of a number is the fractional part of its product with the golden ratio.
    """
    return (torch.arange(count, dtype=torch.float64) * GOLDEN % 1).argsort()


def sampled_rows(rows: Sequence[Row], sizes: Sequence[int], limit: int) -> list[Row]:
    """Return a sample of rows, evenly spread and in their original order, of size `limit` at most.

    At least one row is returned, even if it is larger. A larger limit only adds rows.

    rows: all rows.
    sizes: size of each row, in bytes or tokens.
    limit: maximum sum of the sizes, in the same unit.
    """
    order = spread_order(len(rows))
    ends = torch.tensor(sizes, dtype=torch.long)[order].cumsum(0)
    count = max(1, int((ends <= limit).sum()))
    return [rows[number] for number in order[:count].sort().values.tolist()]
