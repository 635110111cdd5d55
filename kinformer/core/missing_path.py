"""The text about a path that does not exist, the same in every error message."""

from pathlib import Path


def missing_path(path: str | Path, advice: str = "") -> str:
    """Return the message about a path that does not exist.

    path: the path.
    advice: the rest of the message; "" for none.
    """
    return f"there is no file or folder {path}{f'; {advice}' if advice else ''}"
