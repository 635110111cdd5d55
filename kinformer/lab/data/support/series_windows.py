"""SeriesSplit: the rows of one split of a series, and the windows in them."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.batch import SeriesWindows


class SeriesSplit(NamedTuple):
    """One split of a series, together with all rows before it, which belong to earlier splits.

    The earlier rows are known when the split begins, so they may be the context of a forecast.

    values: the standardized rows up to the end of the split.
    calendar: calendar features of the rows.
    first: index of the first row of this split.
    """

    values: Float[Tensor, "N C"]
    calendar: Float[Tensor, "N F"]
    first: int

    @property
    def rows(self) -> Float[Tensor, "R C"]:
        """Rows of this split without the earlier ones."""
        return self.values[self.first :]

    def window_starts(self, context: int, length: int) -> range:
        """Return the starts of windows of `length` rows; all rows after the first `context` are in this split."""
        return range(max(0, self.first - context), len(self.values) - length + 1)

    def check_holds(self, where: str, context: int, length: int) -> None:
        """Raise ValueError if `window_starts` finds no window.

        where: name of the data, for the message.
        context, length: as for `window_starts`.
        """
        if not self.window_starts(context, length):
            raise ValueError(
                f"{where} is too short: got {len(self.rows):,} rows, expected at least "
                f"{length - min(context, self.first):,}. Give more rows, or a smaller context or horizon."
            )

    def sample_starts(self, context: int, length: int, limit: int) -> Int[Tensor, " W"]:
        """Return all starts of `window_starts`, or `limit` of them, evenly spread."""
        starts = torch.tensor(self.window_starts(context, length))
        count = min(len(starts), limit)
        return starts[torch.arange(count) * (len(starts) - 1) // max(count - 1, 1)]

    def windows(self, starts: Int[Tensor, " W"], length: int) -> SeriesWindows:
        """Return the windows that begin at these rows."""
        at = starts[:, None] + torch.arange(length)
        return SeriesWindows(self.values[at], self.calendar[at])
