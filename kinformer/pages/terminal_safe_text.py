"""Text from a model, made safe to print: without control characters, which could change the terminal."""

import sys
import unicodedata
from typing import TextIO

ALLOWED = "\n\t"


def printable(text: str) -> str:
    """Replace every control character except newline and tab by U+FFFD.

    text: the text, which may contain control characters such as ESC, BEL, CR and the C1 range.
    """
    return "".join("�" if unicodedata.category(letter) == "Cc" and letter not in ALLOWED else letter for letter in text)


def for_stream(text: str, to: TextIO | None = None) -> str:
    """Return text without control characters for a terminal, and unchanged for a pipe or file.

    text: the text to write.
    to: the stream that will receive it; None means standard output.
    """
    stream = sys.stdout if to is None else to
    return printable(text) if stream is not None and stream.isatty() else text
