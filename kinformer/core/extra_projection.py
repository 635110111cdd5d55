"""ExtraProjection: the declaration of a further projection of the layer input that a part needs."""

from typing import NamedTuple


class ExtraProjection(NamedTuple):
    """A further projection of the layer input by head, beside queries, keys and values.

    width: the number of values per head and token.
    like: "q", "k" or "v" initialises the matrix as a copy of the query, key or value projection; None uses its own
        initialisation.
    """

    width: int
    like: str | None = None
