"""Consoles that print texts unchanged: no markup, no emoji codes and no highlighting."""

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """Return a console that prints each text as it is.

    Rich would otherwise read the name of a file such as five.py:five: as an emoji, and brackets as styles.

    options: options of the console, such as `width`.
    """
    return Console(highlight=False, markup=False, emoji=False, **options)
