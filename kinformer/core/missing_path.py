"""The text about a path that does not exist, the same in every error message."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kinformer.core.quote import shorten

SHOWN = 255  # characters of a path that a message shows whole


def missing_path(path: str | Path, advice: str = "") -> str:
    """Return the message about a path that does not exist.

    path: the path.
    advice: the rest of the message; "" for none.
    """
    return f"there is no file or folder {shorten(str(path), SHOWN)}{f'; {advice}' if advice else ''}"


@contextmanager
def refuse_long_paths() -> Iterator[None]:
    """Raise FileNotFoundError with a short message for a path that is too long.

    Choose it as a decorator of functions that take a path, for which a user may pass the content of a file. The message
    of the operating system repeats the whole path.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise FileNotFoundError(missing_path(str(error.filename), "its name is too long")) from None
