"""What a place of a picture reads, drawn in the picture."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from kinformer.core.raster import Raster
from kinformer.nn.patterns.axial import Axial
from kinformer.nn.patterns.grid import Grid
from kinformer.nn.patterns.image_2d import Image2D
from kinformer.pages.pictures.support.picture_panels import CELLS, Panel, Picture, numbers
from kinformer.pages.pictures.support.short_repr import short_repr

KINDS = ("it reads", "the query, which is read", "the query, which is not")


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """The keys of a query in the middle of a picture, for patterns that know how wide it is."""
    raster, size = None, length
    if isinstance(example, Axial):
        raster, size = Raster(example.shape[-1]), length or math.prod(example.shape)
    elif isinstance(example, Grid | Image2D):
        raster = Raster(example.width, example.block)
    if raster is None:
        return
    rows = -(-(size or CELLS // 2 * raster.width) // raster.band) * raster.block[0]
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(raster.width), indexing="ij")
    pos = raster.position(row, column)
    tall = raster.block[0]
    middle = (rows // 2 // tall * tall + tall - 1, raster.width // 2)  # the last row of its block reads most
    query = pos[middle]
    kind = torch.as_tensor(example(0, 0, query, pos)).expand(pos.shape).long()
    kind[middle] = 2 if kind[middle] else 3
    panel = Panel("", kind, (kind > 0).double(), *map(numbers, kind.shape))
    caption = f"{short_repr(example)} in a picture: what place {tuple(middle)} reads, generated as number {int(query)}"
    yield Picture(caption, KINDS, (panel,), line="row", column="place of a row")
