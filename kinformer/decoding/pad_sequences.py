"""pad_sequences: pad sequences of different lengths and stack them in one tensor."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


def pad_sequences(rows: Sequence[Sequence[int]], padding: int = -1, *, front: bool = False) -> Int[Tensor, "B T"]:
    """Return sequences as one tensor, padded to the longest.

    rows: sequences of integers.
    padding: value of the padding.
    front: True pads on the left, False on the right.
    """
    batch = torch.full((len(rows), max(map(len, rows))), padding)
    for row, numbers in zip(batch, rows, strict=True):
        row[len(row) - len(numbers) if front else 0 :][: len(numbers)] = torch.tensor(list(numbers))
    return batch
