"""save_figure: writes a Matplotlib figure; after a failure the file is as it was before."""

from io import BytesIO
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import write


def save_figure(figure: Any, path: Path, dpi: int = 110) -> None:
    """Write a Matplotlib figure to a file in one step, so that no half-written file remains.

    figure: the Matplotlib figure.
    path: the file to write; its ending sets the format, PNG if it has none.
    dpi: pixels per inch.

    Errors: ValueError if Matplotlib does not know the ending of `path`; OSError if the file cannot be written.
    """
    buffer = BytesIO()
    figure.savefig(buffer, format=path.suffix[1:] or "png", dpi=dpi)
    write(path, buffer.getvalue())
