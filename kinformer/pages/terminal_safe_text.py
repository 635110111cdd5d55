"""Text of a model as a terminal may show it: without control characters, which could steer the terminal."""

import sys
import unicodedata
from typing import TextIO

ALLOWED = "\n\t"


def printable(text: str) -> str:
    """The text with U+FFFD in place of every control character (ESC, BEL, CR, C1, ...) but newline and tab."""
    return "".join("�" if unicodedata.category(letter) == "Cc" and letter not in ALLOWED else letter for letter in text)


def for_stream(text: str, to: TextIO | None = None) -> str:
    """The text as it is written to standard output, or `to`: printable on a terminal, unchanged in a pipe or file."""
    stream = sys.stdout if to is None else to
    return printable(text) if stream is not None and stream.isatty() else text
