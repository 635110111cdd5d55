"""Forecast baselines that a trained model should beat: the last season, and a linear map."""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK = 512  # windows that are forecast at once


def seasonal_naive(context: Float[Tensor, "W T C"], horizon: int, season: int) -> Float[Tensor, "W N C"]:
    """Forecast `horizon` rows by repeating the last `season` rows; season=1 repeats the last row.

    context: the known rows of each window.
    horizon: number of rows to forecast.
    season: number of rows that are repeated.
    """
    return context[:, -season:][:, torch.arange(horizon) % season]


def least_squares(
    windows: Iterable[Float[Tensor, "W R C"]], context: int
) -> Callable[[Float[Tensor, "V T C"]], Float[Tensor, "V N C"]]:
    """Fit a linear map from the context of a window to its later rows, the same for all columns.

    The map acts on differences to the last known row, as in NLinear (Zeng et al., 2022, arXiv:2205.13504).

    windows: the windows for the fit.
    context: known rows of a window.

    Returns: a function from contexts to forecasts.
    """
    square: Tensor | float = 0.0
    right: Tensor | float = 0.0
    for lot in windows:
        before, targets = lot.double().split([context, lot.shape[1] - context], 1)
        x, y = _rows(before), (targets - before[:, -1:]).transpose(1, 2).flatten(0, 1)
        square, right = x.T @ x + square, x.T @ y + right
    # differences to the last row are 0 in that row, so the square has no inverse
    weights = torch.linalg.lstsq(square, right, driver="gelsd").solution  # [T+1 N]

    def forecast(before: Float[Tensor, "V T C"]) -> Float[Tensor, "V N C"]:
        forecasts = [
            (_rows(lot.double()) @ weights).unflatten(0, (len(lot), -1)).transpose(1, 2) + lot[:, -1:].double()
            for lot in before.split(BLOCK)
        ]
        return torch.cat(forecasts).to(before.dtype)

    return forecast


def _rows(context: Float[Tensor, "W T C"]) -> Float[Tensor, "WC T1"]:
    """Return a row for each window and column: the differences to the last known number, and a 1."""
    apart = (context - context[:, -1:]).transpose(1, 2).flatten(0, 1)
    return torch.cat([apart, torch.ones_like(apart[:, :1])], 1)
