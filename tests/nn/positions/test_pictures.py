"""Positions of pictures, place by place."""

from typing import Literal

import pytest
import torch

from kinformer.nn.positions.coordinates import Coordinates
from kinformer.nn.positions.halves import Halves
from kinformer.nn.positions.sinusoidal import Sinusoidal


def places(rows: int, columns: int, channels: int, block: tuple[int, int]) -> list[tuple[int, int, int]]:
    """Row, column and channel in the order of generation."""
    h, w = block
    return [
        (top + r, left + c, channel)
        for top in range(0, rows, h)
        for left in range(0, columns, w)
        for r in range(h)
        for c in range(w)
        for channel in range(channels)
    ]


SHAPES = [(4, 6, 3, (1, 1)), (4, 6, 3, (2, 3)), (6, 4, 1, (3, 2))]


@pytest.mark.parametrize(("rows", "columns", "channels", "block"), SHAPES)
def test_coordinates_are_a_sum_of_tables(rows: int, columns: int, channels: int, block: tuple[int, int]) -> None:
    position = Coordinates(8, rows, columns, channels, block=block).double()
    tables = [table.weight for table in position.tables]
    actual = position(torch.arange(position.length)[None])[0]
    for pos, at in enumerate(places(rows, columns, channels, block)):
        expected = torch.zeros(8, dtype=torch.double)
        for table, n in zip(tables, at, strict=False):
            expected = expected + table[n]
        assert torch.allclose(actual[pos], expected)
    assert len(tables) == (2 if channels == 1 else 3)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
@pytest.mark.parametrize(("rows", "columns", "channels", "block"), SHAPES)
def test_halves_tell_the_row_and_the_column_with_its_channel(
    rows: int, columns: int, channels: int, block: tuple[int, int], kind: Literal["learned", "sinusoidal"]
) -> None:
    position = Halves(7, rows, columns, channels, block=block, kind=kind).double()
    actual = position(torch.arange(position.length)[None])[0]
    row, value = (
        Sinusoidal(n).double()(torch.arange(99)[None])[0] if kind == "sinusoidal" else table.weight
        for n, table in ((3, position.row), (4, position.value))
    )
    for pos, (r, c, channel) in enumerate(places(rows, columns, channels, block)):
        assert torch.equal(actual[pos], torch.cat([row[r], value[c * channels + channel]]))


@pytest.mark.parametrize("make", [Coordinates, Halves])
def test_what_lies_beyond_the_picture_is_refused_and_padding_is_nothing(make: type[Coordinates] | type[Halves]) -> None:
    position = make(8, 2, 3)
    assert not position(torch.tensor([[-1]])).any()
    with pytest.raises(IndexError, match="position 6 is beyond a picture of 2 x 3 x 1"):
        position(torch.tensor([[6]]))
