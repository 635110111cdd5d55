"""Standardized columns: (number - mean) / deviation, with checks for overflow and underflow."""

from collections.abc import Sequence

import numpy
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kinformer.lab.data.support.safe_scales import scales

FARTHEST = 1e18  # deviations from the mean; a model sums hundreds of their squares in float32
MOVES = 1e-6  # relative to a column's largest number; a larger range without a deviation means underflow


def column_scales(
    where: str, names: Sequence[str], numbers: Float[Tensor, "N C"]
) -> tuple[Float[Tensor, "2 C"], Bool[Tensor, " C"]]:
    """Return the mean and deviation of each column, and a mask of the constant columns.

    where, names: names of the data and of its columns, for errors.
    numbers: the training rows.

    Errors: ValueError if squares of numbers overflow float64, or are so small that they are 0.
    """
    with numpy.errstate(over="ignore", invalid="ignore"):
        mean = torch.from_numpy(numbers.numpy().mean(0))
    deviation, constant = scales(numbers)
    scale = torch.stack([mean, deviation])
    _refuse_size(where, names, numbers, ~scale.isfinite().all(0), "small enough to square")
    moves = numbers.amax(0) - numbers.amin(0) > MOVES * numbers.abs().amax(0)
    _refuse_size(where, names, numbers, constant & moves, "large enough to square")
    return scale, constant


def standardize(
    where: str, names: Sequence[str], numbers: Float[Tensor, "N C"], scale: Float[Tensor, "2 C"]
) -> Float[Tensor, "N C"]:
    """Return (number - mean) / deviation for each number of each column, in float32.

    where, names: names of the data and of its columns, for errors.
    numbers: the rows.
    scale: means and deviations.

    Errors: ValueError if squares of the result overflow float32.
    """
    values = (numbers - scale[0]) / scale[1]
    far = ~(values.abs() <= FARTHEST)
    _refuse_size(where, names, numbers, far.any(0), f"within {FARTHEST:g} deviations of the mean in train")
    return values.float()


def _refuse_size(
    where: str, names: Sequence[str], numbers: Float[Tensor, "N C"], wrong: Bool[Tensor, " C"], expected: str
) -> None:
    """Refuse the first wrong column; the ValueError names the column and the row of its largest number."""
    if not bool(wrong.any()):
        return
    column = int(wrong.nonzero()[0])
    row = int(numbers[:, column].abs().argmax())
    raise ValueError(
        f"{where} cannot be standardized: got {float(numbers[row, column])!r} in row {row + 1:,} of the column "
        f"{names[column]}, expected numbers {expected}. Correct the number, or give the column another unit."
    )
