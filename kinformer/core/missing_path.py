"""What every error says of a path at which nothing is, in the same words."""

from pathlib import Path


def missing_path(path: str | Path, advice: str = "") -> str:
    """The line, with what to do about it, if anything."""
    return f"there is no file or folder {path}{f'; {advice}' if advice else ''}"
