"""Frames of an episode as an animated GIF."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import animation, pyplot  # noqa: E402  (the backend is chosen first)

RATE = 30  # frames per second


def save_animation(frames: Sequence[Any], path: Path) -> None:
    """Write the frames of an episode as an animated GIF with 30 frames per second.

    frames: images [H W C], all of one size; the first one sets the size of the animation.
    path: the file to write.
    """
    high, wide = frames[0].shape[:2]
    figure = pyplot.figure(figsize=(4, max(0.5, 4 * high / wide)), dpi=80)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    picture = axes.imshow(frames[0], aspect="auto")
    writer = animation.PillowWriter(fps=RATE)
    with writer.saving(figure, str(path), dpi=80):
        for frame in frames:
            picture.set_data(frame)
            writer.grab_frame()
    pyplot.close(figure)
