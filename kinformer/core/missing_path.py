"""The text about a path that does not exist, the same in every error message."""

from pathlib import Path

from kinformer.core.quote import shorten

LONGEST_PATH = 4096  # bytes of a path on Linux
SHOWN = 255  # characters of a path that a message shows whole


def missing_path(path: str | Path, advice: str = "") -> str:
    """Return the message about a path that does not exist.

    path: the path.
    advice: the rest of the message; "" for none.
    """
    return f"there is no file or folder {shorten(str(path), SHOWN)}{f'; {advice}' if advice else ''}"


def check_path_length(path: str | Path) -> None:
    """Raise FileNotFoundError, in one short line, for a path that is longer than any file system allows.

    path: the path.
    """
    if len(str(path)) > LONGEST_PATH:
        raise FileNotFoundError(missing_path(path, "give a path, not the content of a file"))
