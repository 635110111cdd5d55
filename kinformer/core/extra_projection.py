"""ExtraProjection: a further projection of the layer input for each head, beside queries, keys and values."""

from typing import NamedTuple


class ExtraProjection(NamedTuple):
    """Numbers per head that a part wants from the layer's input: `width` of them.

    `like` "q", "k" or "v" starts the matrix that makes them as a copy of the projection's own.
    """

    width: int
    like: str | None = None
