"""The order of a picture's places, against loops over blocks."""

import itertools

import pytest
import torch

from kinformer.core.raster import Raster
from tests.nn.patterns.pictures import generation_order

ORDERS = [(5, (1, 1)), (6, (2, 3)), (4, (3, 1)), (6, (1, 6)), (4, (2, 4))]


@pytest.mark.parametrize(("width", "block"), ORDERS)
def test_places_are_walked_block_by_block(width: int, block: tuple[int, int]) -> None:
    raster = Raster(width, block)
    places = generation_order(width, block, 4 * block[0])
    row, column = raster.row_and_column(torch.arange(len(places)))
    assert list(zip(row.tolist(), column.tolist(), strict=True)) == places
    assert raster.position(row, column).tolist() == list(range(len(places)))


@pytest.mark.parametrize(("width", "block"), ORDERS)
def test_boxes_hold_exactly_what_lies_between_two_positions(width: int, block: tuple[int, int]) -> None:
    raster, places = Raster(width, block), generation_order(width, block, 3 * block[0])
    at = torch.arange(len(places))
    boxes = [[x.tolist() for x in box] for box in raster.boxes(*torch.meshgrid(at, at, indexing="ij"))]
    for lo, hi in itertools.combinations_with_replacement(range(len(places)), 2):
        pairs = []
        for key, top, left, bottom, right in boxes:
            if key[lo][hi]:
                rows, columns = range(top[lo][hi], bottom[lo][hi] + 1), range(left[lo][hi], right[lo][hi] + 1)
                pairs += list(itertools.product(rows, columns))
        assert sorted(pairs) == sorted(places[lo : hi + 1])
