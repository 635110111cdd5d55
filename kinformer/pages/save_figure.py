"""save_figure: a picture that is there whole, or as it was."""

from io import BytesIO
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import write


def save_figure(figure: Any, path: Path, dpi: int = 110) -> None:
    """Write a Matplotlib figure, as its file is called, .png unless said, in one step.

    Errors: ValueError for an ending that Matplotlib does not know; OSError, in one line, where it cannot be written.
    """
    buffer = BytesIO()
    figure.savefig(buffer, format=path.suffix[1:] or "png", dpi=dpi)
    write(path, buffer.getvalue())
