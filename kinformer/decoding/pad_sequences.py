"""pad_sequences: rows of numbers of different lengths as one tensor."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


def pad_sequences(rows: Sequence[Sequence[int]], padding: int = -1, *, front: bool = False) -> Int[Tensor, "B T"]:
    """Rows as long as the longest one, padded behind, or in front."""
    batch = torch.full((len(rows), max(map(len, rows))), padding)
    for row, numbers in zip(batch, rows, strict=True):
        row[len(row) - len(numbers) if front else 0 :][: len(numbers)] = torch.tensor(list(numbers))
    return batch
