"""quote: a user's value in an error message, short whatever the value is."""

import reprlib
from typing import Any

LONGEST = 80  # characters of a quoted value
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxtuple, _SHORT.maxlist = 3, 40, 8, 8
_SHORT.maxother = _SHORT.maxlong = LONGEST


def quote(value: Any) -> str:
    """Return the repr of a value for an error message, in one line of at most about 80 characters.

    A long text is cut, and its length is given. A tensor or an array becomes `<Tensor torch.float32 [2, 3]>`. A value
    with a repr of several lines, such as a module, becomes `<Linear>`. A number of numpy stays a number.

    value: any value.
    """
    if isinstance(value, str | bytes | bytearray):
        return repr(value) if len(value) <= LONGEST else f"{value[: LONGEST // 2]!r}... ({len(value):,} characters)"
    shape = None if isinstance(value, type) else getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and hasattr(value, "dtype"):
        return f"<{type(value).__name__} {value.dtype} {list(shape)}>"
    try:
        text = _SHORT.repr(value)
    except ValueError:  # Python does not write integers of more than 4,300 digits
        return f"<{type(value).__name__}>"
    return f"<{type(value).__name__}>" if "\n" in text else shorten(text)


def shorten(text: str, longest: int = LONGEST) -> str:
    """Return a text for an error message, in one line, cut if it is too long.

    text: the text, such as a path or a part of a user's expression.
    longest: largest number of characters; a longer text is cut.
    """
    is_long = len(text) > longest
    start = text[: max(LONGEST // 2, longest - LONGEST)] if is_long else text
    return " ".join(start.splitlines()) + (f"... ({len(text):,} characters)" if is_long else "")
