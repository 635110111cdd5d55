"""ByStream: each position by its own stream's projection."""

import pytest
import torch

from kinformer.projections.by_stream import ByStream
from kinformer.projections.qkv import QKV


def test_each_position_is_projected_by_its_stream() -> None:
    wide, long = QKV(16, 4, key_heads=2), QKV(16, 4, key_heads=2)
    both, x, pos = (
        ByStream(3, wide, long),
        torch.randn(2, 6, 16),
        torch.tensor([[0, 2, 3, 4, 5, -1], [7, 1, 0, 3, 2, 9]]),
    )
    for made, first, second in zip(both(x, pos, x, pos), wide(x, pos, x, pos), long(x, pos, x, pos), strict=True):
        for b in range(2):
            for t in range(6):
                if pos[b, t] >= 0:
                    assert torch.equal(made[b, :, t], (first if pos[b, t] < 3 else second)[b, :, t])


def test_both_streams_have_the_same_heads() -> None:
    with pytest.raises(ValueError, match=r"\(4, 4, 4, 4\) and \(2, 2, 8, 8\); give both the same"):
        ByStream(3, QKV(16, 4), QKV(16, 2))
