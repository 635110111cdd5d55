"""Images side by side in a file."""

from pathlib import Path

import pytest
import torch
from matplotlib import image

from kinformer.pages.gallery import save_images


def test_pictures_stand_side_by_side(tmp_path: Path) -> None:
    pixels = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 3, 2, 2) * 50
    save_images(pixels, tmp_path / "a.png", 3)
    result = (image.imread(tmp_path / "a.png")[..., :3] * 255).round()
    times = result.shape[0] // 6  # two rows of pictures, each two places high, and a gap
    assert result.shape == (6 * times, 9 * times, 3)
    corners = result[:: 3 * times, :: 3 * times, 0]
    assert corners.tolist() == [[0, 50, 100], [150, 200, 128]]
    with pytest.raises(ValueError, match="an image cannot be written as PNG: got 2 channels, expected 1 or 3"):
        save_images(pixels[:, :2], tmp_path / "b.png", 3)
