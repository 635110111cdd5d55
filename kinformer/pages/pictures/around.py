"""A picture of the pixels that one pixel of an image reads, for attention patterns of images."""

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

KINDS = ("keys that it reads", "the query, which reads itself", "the query, which does not read itself")


def pictures(example: Any, length: int | None) -> Iterator[Picture]:
    """Yield a picture of the pixels that one query pixel in the middle of an image reads (attends to).

    example: an attention pattern; only patterns that know the width of the image are drawn.
    length: number of pixels; None for the whole image or 12 rows.
    """
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
    middle = (rows // 2 // tall * tall + tall - 1, raster.width // 2)  # the last row of a block reads the most keys
    query = pos[middle]
    kind = torch.as_tensor(example(0, 0, query, pos)).expand(pos.shape).long()
    kind[middle] = 2 if kind[middle] else 3
    panel = Panel("", kind, (kind > 0).double(), *map(numbers, kind.shape))
    caption = f"{short_repr(example)} in an image: pixels that pixel {tuple(middle)}, position {int(query)}, reads"
    yield Picture(caption, KINDS, (panel,), line="row", column="column")
