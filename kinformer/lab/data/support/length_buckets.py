"""Buckets: rows of similar lengths are drawn together, so that a batch has little padding."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy

ROWS = 16  # minimum number of batches in the rows of a bucket


@dataclass(frozen=True, eq=False)
class Buckets:
    """Batches of row indices from one bucket each, by seed and step; every row is equally likely.

    Rows are sorted by length and cut into buckets with the rows of 16 batches, or a few more. A row drawn from all rows
    decides the bucket of a batch.

    lengths: length of each row.
    batch: rows per batch.
    seed: seed of the batches.
    order: the rows sorted by length; computed.
    """

    lengths: Sequence[int]
    batch: int
    seed: int = 0
    order: numpy.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", numpy.argsort(numpy.asarray(self.lengths), kind="stable"))

    def at(self, step: int) -> list[int]:
        """Return the row indices of a step."""
        draw, count = numpy.random.default_rng((self.seed, step)), len(self.order)
        buckets = max(1, count // (ROWS * self.batch))
        bucket = int(draw.integers(count)) * buckets // count
        first, last = -(-bucket * count // buckets), -(-(bucket + 1) * count // buckets)
        return self.order[draw.integers(first, last, size=self.batch)].tolist()
