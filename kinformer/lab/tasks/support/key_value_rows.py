"""Rows of keys and values: symbols for them, and rows in which keys ask for their values."""

from collections.abc import Iterable

from kinformer.core.task import DIGITS, LETTERS, TaskRow

KEYS = LETTERS + b"#$%&*+-/<=>@"  # 64 symbols
VALUES = DIGITS + b"!\"'(),:;?[\\]^_`{|}~"  # 29 symbols, none of them a key or a dot


def ask_listed(listed: bytes, queries: Iterable[tuple[bytes, bytes]]) -> TaskRow:
    """Return a row in which a model reads a text, and then answers each key.

    listed: the text before the first query.
    queries: pairs of a key and its value, in their order in the row; at least one.
    """
    (key, value), *further = queries
    return TaskRow([(listed + key, value), *further])


def ask_repeated(items: Iterable[tuple[bytes, bytes]]) -> TaskRow:
    """Return a row in which a model reads the first occurrence of a key, and answers the later ones.

    items: pairs of a key and its value, in their order in the row. An empty value makes the item noise, which is only
        read. The last item must be a repeated key.
    """
    pieces, read, seen = [], b"", set()
    for key, value in items:
        if value and key in seen:
            pieces.append((read + key, value))
            read = b""
        else:
            read += key + value
            seen.add(key)
    return TaskRow(pieces)
