"""Buckets: rows of like lengths, drawn together, so that little of a batch is padding."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy

ROWS = 16  # batches that a bucket has rows for, at least


@dataclass(frozen=True, eq=False)
class Buckets:
    """Which rows a batch has, by seed and step alone: `batch` of one bucket, every row as likely as any other.

    Rows are put in order by length and cut into buckets of as many as 16 batches have, or a few more; a batch is of the
    bucket that a row drawn from all is in.
    """

    lengths: Sequence[int]
    batch: int
    seed: int = 0
    order: numpy.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", numpy.argsort(numpy.asarray(self.lengths), kind="stable"))

    def at(self, step: int) -> list[int]:
        """The rows of a step."""
        draw, count = numpy.random.default_rng((self.seed, step)), len(self.order)
        buckets = max(1, count // (ROWS * self.batch))
        bucket = int(draw.integers(count)) * buckets // count
        first, last = -(-bucket * count // buckets), -(-(bucket + 1) * count // buckets)
        return self.order[draw.integers(first, last, size=self.batch)].tolist()
