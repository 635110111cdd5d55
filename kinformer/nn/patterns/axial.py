"""Axial: attention along one axis of an image or another array."""

import math
from dataclasses import dataclass

from kinformer.core.checks import check_whole_between, check_whole_numbers
from kinformer.core.pattern import Pattern, Spelled
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.strided import Strided


@dataclass(frozen=True)
class Axial(Spelled):
    """Axial attention: each query reads the positions of an array that differ from it along one axis only.

    Positions number the array in raster order: along the last axis first. In an image of shape (rows, columns), a query
    with axis 1 reads its row, as with `Block(columns)`, and with axis 0 its column. Choose it for images and other
    arrays, and alternate the axes from layer to layer. Two layers connect all positions of an image, at a cost of rows
    + columns keys for each query. `Axial(shape, 0) | Axial(shape, 1)` reads both axes in one layer.

    Under `Causal()`, however many layers of axis 0 and 1 are stacked, no information reaches a query from positions
    above it and further right. Use an `AxialDecoder`, which gives each row the outputs for the whole row above. Two
    layers of `Causal() & (Axial(shape, 0) | Band(columns))` also reach these positions, through the row above.

    shape: sizes of the axes, the slowest axis first.
    axis: index of the axis that is read, from 0.

    Errors: ValueError if shape is empty or has no such axis.
    Source: Ho et al., 2019, arXiv:1912.12180, section 3; 'extended patterns' of Lin et al., 2021, arXiv:2106.04554.
    """

    shape: tuple[int, ...]
    axis: int

    def __post_init__(self) -> None:
        if not check_whole_numbers("Axial.shape", self.shape, 1):
            raise ValueError("Axial.shape=() has no axis. Pass the numbers of rows and columns of a picture")
        check_whole_between("Axial.axis", self.axis, 0, len(self.shape) - 1)

    @property
    def expression(self) -> Pattern:
        step = math.prod(self.shape[self.axis + 1 :])
        line = Block(step * self.shape[self.axis])
        return line if step == 1 else Strided(step) & line


EXAMPLES = (Axial((3, 4), 1), Axial((3, 4), 0), Axial((2, 3, 2), 1))
