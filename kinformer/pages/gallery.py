"""Images side by side in one PNG."""

from pathlib import Path

import torch
from matplotlib import image
from torch import Tensor
from torch.nn import functional as F

LEAST = 640  # pixels along the longer side of the PNG; smaller grids are enlarged by a whole factor up to this size
GAP = 1  # pixels between two images, before the enlargement


def save_images(pixels: Tensor, path: Path, columns: int) -> None:
    """Write a batch of images as a grid in one PNG file.

    pixels: images [B C H W] of bytes.
    path: the file to write.
    columns: number of images in each row of the grid; empty places are gray.

    Errors: ValueError if the images have neither 1 nor 3 channels.
    """
    if pixels.shape[1] not in (1, 3):
        raise ValueError(f"an image cannot be written as PNG: got {pixels.shape[1]} channels, expected 1 or 3")
    rows = -(-len(pixels) // columns)
    missing = rows * columns - len(pixels)
    grid = F.pad(pixels, (0, GAP, 0, GAP), value=128)
    grid = torch.cat([grid, grid.new_full((missing, *grid.shape[1:]), 128)]) if missing else grid
    grid = grid.unflatten(0, (rows, columns)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # [H W C]
    times = max(1, LEAST // max(grid.shape[:2]))
    large = grid.repeat_interleave(times, 0).repeat_interleave(times, 1)
    image.imsave(path, large.expand(*large.shape[:2], 3).contiguous().numpy())
