"""Byte counts as text."""

import math


def size(count: float) -> str:
    """Format a number of bytes, such as 1.2 GB.

    count: the number of bytes.
    """
    power = min(int(math.log(max(count, 1), 1000)), 4)
    return f"{count / 1000**power:,.3g} {('B', 'KB', 'MB', 'GB', 'TB')[power]}"
