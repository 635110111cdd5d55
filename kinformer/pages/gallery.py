"""Images side by side in one PNG."""

from pathlib import Path

import torch
from matplotlib import image
from torch import Tensor
from torch.nn import functional as F

LEAST = 640  # places of the PNG along a side; images are enlarged up to there
GAP = 1  # places between two images


def save_images(pixels: Tensor, path: Path, columns: int) -> None:
    """Write images [B C H W] in rows of `columns` as a PNG. ValueError for channels that are neither one nor three."""
    if pixels.shape[1] not in (1, 3):
        raise ValueError(f"pictures of {pixels.shape[1]} channels have no PNG; it takes one or three")
    rows = -(-len(pixels) // columns)
    missing = rows * columns - len(pixels)
    grid = F.pad(pixels, (0, GAP, 0, GAP), value=128)
    grid = torch.cat([grid, grid.new_full((missing, *grid.shape[1:]), 128)]) if missing else grid
    grid = grid.unflatten(0, (rows, columns)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # [H W C]
    times = max(1, LEAST // max(grid.shape[:2]))
    large = grid.repeat_interleave(times, 0).repeat_interleave(times, 1)
    image.imsave(path, large.expand(*large.shape[:2], 3).contiguous().numpy())
