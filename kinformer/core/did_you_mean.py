"""Suggestions of the nearest existing name, for error messages about unknown names."""

import difflib
from collections.abc import Iterable

NEAR = 0.6  # difflib's ratio from which a name counts as a typing error; at 0.5 Foo-v0 is near Acrobot-v1


def suggest_names(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """Return the end of an error message that suggests the existing name nearest to an unknown one.

    name: the unknown name.
    names: the existing names.
    otherwise: the text to return if no name is near; None lists all names.
    """
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=NEAR)
    if close:
        return f"; the nearest is {close[0]!r}"
    if otherwise is not None:
        return otherwise
    return f"; there are {', '.join(names)}" if names else "; there are none"
