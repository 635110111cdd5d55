"""PairMask: the pairs that a mask of each row allows; nothing beyond the mask."""

import pytest
import torch

from kinformer.nn.patterns.pair_mask import PairMask
from tests.nn.patterns.compare import compare

MASK = torch.rand(2, 9, 7, generator=torch.Generator().manual_seed(0)) < 0.5


def reads(b: int, h: int, i: int, j: int) -> bool:
    return i < 9 and j < 7 and bool(MASK[b, i, j])


def test_the_pairs_of_the_mask_are_read() -> None:
    compare(PairMask(MASK), reads, length=12, rows=2)


def test_masks_of_other_rows_are_noticed() -> None:
    with pytest.raises(AssertionError, match="query"):
        compare(PairMask(MASK.flip(0)), reads, length=12, rows=2)
