"""Amounts in words."""

import math


def size(count: float) -> str:
    """Bytes in words: 1.2 GB."""
    power = min(int(math.log(max(count, 1), 1000)), 4)
    return f"{count / 1000**power:,.3g} {('B', 'KB', 'MB', 'GB', 'TB')[power]}"
