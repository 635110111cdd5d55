"""Files of data: what stands at a path, and how it is split."""

import hashlib
from pathlib import Path

from kinformer.core.absent import absent

VALID, TEST = 0.05, 0.05  # shares that are watched, and reported once at the very end


def found(where: str, advice: str) -> Path:
    """The path of what is there. FileNotFoundError, with advice, for what is not, and for a device without an end."""
    path = Path(where).expanduser()
    if not path.exists() or path.is_char_device() or path.is_block_device():
        raise FileNotFoundError(absent(where, advice))
    return path


def contents(path: Path, advice: str = "", *, size: int = -1) -> bytes:
    """All bytes of a file, or its first `size`; OSError, in one line that ends with the advice, if it is unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror}{advice}") from error


def digest(data: bytes) -> bytes:
    """By what is split and ordered: the same on every machine, whatever stands beside it."""
    return hashlib.sha256(data).digest()
