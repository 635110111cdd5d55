"""Buckets: groups of rows of similar length, so that a batch from one group has little padding."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy

ROWS = 16  # minimum number of batches in the rows of a bucket


@dataclass(frozen=True, eq=False)
class Buckets:
    """Random batches of row indices; the rows of a batch have similar lengths.

    Rows are sorted by length and cut into buckets with the rows of 16 batches, or a few more. A batch takes all its
    rows from one bucket. A row drawn at random from all rows decides which one, so every row is equally likely. A batch
    follows from seed and step.

    lengths: length of each row.
    batch: rows per batch.
    seed: seed of the batches.
    order: the row indices sorted by length, computed from `lengths`.
    """

    lengths: Sequence[int]
    batch: int
    seed: int = 0
    order: numpy.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", numpy.argsort(numpy.asarray(self.lengths), kind="stable"))

    def at(self, step: int) -> list[int]:
        """Return the indices of the rows in the batch of a step."""
        draw, count = numpy.random.default_rng((self.seed, step)), len(self.order)
        buckets = max(1, count // (ROWS * self.batch))
        bucket = int(draw.integers(count)) * buckets // count
        first, last = -(-bucket * count // buckets), -(-(bucket + 1) * count // buckets)
        return self.order[draw.integers(first, last, size=self.batch)].tolist()
