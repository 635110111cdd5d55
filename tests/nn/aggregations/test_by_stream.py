"""OutByStream: the heads of each position are joined by its stream's matrix."""

import pytest
import torch

from kinformer.nn.aggregations.by_stream import OutByStream
from kinformer.nn.aggregations.out_projection import OutProjection


def test_each_position_is_joined_by_its_stream() -> None:
    wide, long = OutProjection(2, 4, 8), OutProjection(2, 4, 8)
    y, pos = torch.randn(2, 2, 6, 4), torch.tensor([[0, 2, 3, 4, 5, -1], [7, 1, 0, 3, 2, 9]])
    joined, first, second = OutByStream(3, wide, long)(y, pos), wide(y, pos), long(y, pos)
    for b in range(2):
        for t in range(6):
            if pos[b, t] >= 0:
                assert torch.equal(joined[b, t], (first if pos[b, t] < 3 else second)[b, t])


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="n=-1"):
        OutByStream(-1, OutProjection(2, 4, 8), OutProjection(2, 4, 8))
