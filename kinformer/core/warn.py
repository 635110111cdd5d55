"""warn: warn the caller of the library, with the line of the caller's own code."""

import contextlib
import functools
import os
import sys
import warnings
from pathlib import Path
from types import FrameType

# files between the line that a user wrote and the line that warns
_OWN = (f"{Path(__file__).parents[1]}{os.sep}", contextlib.__file__, functools.__file__)


def warn(message: str) -> None:
    """Warn with the file and line of the first caller outside of this package.

    Choose it in place of `warnings.warn`, whose `stacklevel` counts calls and so changes with every decorator.

    message: the warning, in one line.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
