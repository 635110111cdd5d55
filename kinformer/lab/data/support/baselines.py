"""Forecasts that anything learned should be better than: what was a season ago, and a linear map."""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK = 512  # windows that are forecast at once


def seasonal(known: Float[Tensor, "W T C"], horizon: int, season: int) -> Float[Tensor, "W N C"]:
    """The last `season` rows again and again; season=1 says the last row for ever."""
    return known[:, -season:][:, torch.arange(horizon) % season]


def least_squares(
    windows: Iterable[Float[Tensor, "W R C"]], context: int
) -> Callable[[Float[Tensor, "V T C"]], Float[Tensor, "V N C"]]:
    """The linear map, the same for all columns, from the known rows of a window to those after, fitted on windows.

    What is mapped are differences to the last known row, as in NLinear (Zeng et al., 2023, arXiv:2205.13504).
    """
    square: Tensor | float = 0.0
    right: Tensor | float = 0.0
    for some in windows:
        known, wanted = some.double().split([context, some.shape[1] - context], 1)
        x, y = _rows(known), (wanted - known[:, -1:]).transpose(1, 2).flatten(0, 1)
        square, right = x.T @ x + square, x.T @ y + right
    # differences to the last row are 0 in that row, so the square has no inverse
    weights = torch.linalg.lstsq(square, right, driver="gelsd").solution  # [T+1 N]

    def forecast(known: Float[Tensor, "V T C"]) -> Float[Tensor, "V N C"]:
        found = [
            (_rows(some.double()) @ weights).unflatten(0, (len(some), -1)).transpose(1, 2) + some[:, -1:].double()
            for some in known.split(BLOCK)
        ]
        return torch.cat(found).to(known.dtype)

    return forecast


def _rows(known: Float[Tensor, "W T C"]) -> Float[Tensor, "WC T1"]:
    """A row for each window and column: differences to the last known number, and a one."""
    apart = (known - known[:, -1:]).transpose(1, 2).flatten(0, 1)
    return torch.cat([apart, torch.ones_like(apart[:, :1])], 1)
