"""SeriesSplit: the rows of one split of a series, and the windows in them."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.batch import SeriesWindows


class SeriesSplit(NamedTuple):
    """Rows up to where a split ends; those before `first` are of the splits before it, and known when it begins."""

    values: Float[Tensor, "N C"]
    calendar: Float[Tensor, "N F"]
    first: int

    @property
    def rows(self) -> Float[Tensor, "R C"]:
        """Its own rows."""
        return self.values[self.first :]

    def window_starts(self, context: int, length: int) -> range:
        """Where windows of `length` rows begin of which all but the first `context` are its own."""
        return range(max(0, self.first - context), len(self.values) - length + 1)

    def check_holds(self, where: str, context: int, length: int) -> None:
        """ValueError if the stretch holds no window of `length` rows, of which up to `context` may lie before it."""
        if not self.window_starts(context, length):
            raise ValueError(
                f"{where} is too short: got {len(self.rows):,} rows, expected at least "
                f"{length - min(context, self.first):,}. Give more rows, or a smaller context or horizon."
            )

    def sample_starts(self, context: int, length: int, limit: int) -> Int[Tensor, " W"]:
        """The same: all of them, or so many from all over."""
        starts = torch.tensor(self.window_starts(context, length))
        count = min(len(starts), limit)
        return starts[torch.arange(count) * (len(starts) - 1) // max(count - 1, 1)]

    def windows(self, starts: Int[Tensor, " W"], length: int) -> SeriesWindows:
        """The windows that begin there."""
        at = starts[:, None] + torch.arange(length)
        return SeriesWindows(self.values[at], self.calendar[at])
