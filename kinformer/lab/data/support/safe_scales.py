"""Scales of columns: divisors that are never 0, and a check that float32 does not merge values."""

import numpy
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-12}  # share of the largest number; less is rounding
LOST = 0.01  # share of a column's deviation that a cast to float32 may change


def tells_apart(deviation: Float[Tensor, " C"], columns: Float[Tensor, "N C"]) -> Bool[Tensor, " C"]:
    """Return True for columns with values that differ by more than rounding; others count as constant.

    deviation: standard deviation of each column.
    columns: the values.
    """
    rounding = ROUNDING.get(columns.dtype, 8 * torch.finfo(columns.dtype).eps)
    return deviation > rounding * columns.abs().amax(0)


def scales(columns: Float[Tensor, "N C"]) -> tuple[Float[Tensor, " C"], Bool[Tensor, " C"]]:
    """Return the divisor of each column in float64, and a mask of the constant columns.

    The divisor is the standard deviation, or 1 for a constant column.
    """
    deviation = columns.double().std(0, correction=0)
    constant = ~tells_apart(deviation, columns)
    return deviation.masked_fill(constant, 1.0), constant


def refuse_flattened(place: str, name: str, values: ndarray) -> None:
    """Raise ValueError if values of a column differ in float64 but not in float32.

    A constant column passes. Infinite numbers and NaN are not checked here.

    place, name: names of the data and of the array, for the message.
    values: the array; its first axis is the rows.
    """
    columns = values.reshape(len(values), -1)
    if not columns.size or columns.dtype.kind not in "fiu" or numpy.can_cast(columns.dtype, numpy.float32):
        return
    wide = columns.astype(numpy.float64)
    with numpy.errstate(over="ignore", invalid="ignore"):
        rounded = numpy.sqrt(numpy.square(wide.astype(numpy.float32) - wide).mean(0))
    deviation, constant = (part.numpy() for part in scales(torch.from_numpy(wide)))
    flat = numpy.flatnonzero((rounded > LOST * deviation) & ~constant & numpy.isfinite(rounded))
    if len(flat):
        flat_column = wide[:, flat[0]]
        column = f"column {flat[0]} of {name}" if columns.shape[1] > 1 else name
        raise ValueError(
            f"{place}: float32 cannot tell apart the values of {column}: got {flat_column.min():.12g} to "
            f"{flat_column.max():.12g}. Subtract {flat_column.mean():.6g}"
        )


def constant_columns(constant: Bool[Tensor, " C"], names: tuple[str, ...]) -> str:
    """Return the end of a message that names the constant columns; "" if there are none."""
    flat_names = [name for name, flat in zip(names, constant.tolist(), strict=True) if flat]
    return f"; constant in train: {', '.join(flat_names[:8])}{', ...' * (len(flat_names) > 8)}" if flat_names else ""
