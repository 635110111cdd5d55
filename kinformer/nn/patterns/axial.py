"""Axial: places of a picture that differ along one axis alone."""

import math
from dataclasses import dataclass

from kinformer.core.checks import check_whole_between, check_whole_numbers
from kinformer.core.pattern import Pattern, Spelled
from kinformer.nn.patterns.block import Block
from kinformer.nn.patterns.strided import Strided


@dataclass(frozen=True)
class Axial(Spelled):
    """i and j, positions of an array of this shape in raster order, are the same along every axis but one.

    Of a picture (rows, columns) axis 1 reads the own row, `Block(columns)`, and axis 0 the own column. Layers take
    them in turn: after both, everything was read, at a cost of rows + columns keys a query. Both at once:
    `Axial(shape, 0) | Axial(shape, 1)`. Under `Causal()` no number of such layers reads what stands above and further
    right: an `AxialDecoder` hands whole rows down instead, and two of `Causal() & (Axial(shape, 0) | Band(columns))`
    reach it by way of the row above.

    shape: how many places there are along each axis, the slowest first.
    axis: along which is read, from 0.

    Source: Ho et al., 2019, arXiv:1912.12180, section 3; 'extended patterns' of Lin et al., 2021, arXiv:2106.04554.
    """

    shape: tuple[int, ...]
    axis: int

    def __post_init__(self) -> None:
        if not check_whole_numbers("Axial.shape", self.shape, 1):
            raise ValueError("Axial.shape=() has no axis; give the rows and the columns of a picture")
        check_whole_between("Axial.axis", self.axis, 0, len(self.shape) - 1)

    @property
    def expression(self) -> Pattern:
        step = math.prod(self.shape[self.axis + 1 :])
        line = Block(step * self.shape[self.axis])
        return line if step == 1 else Strided(step) & line


EXAMPLES = (Axial((3, 4), 1), Axial((3, 4), 0), Axial((2, 3, 2), 1))
