"""Dropout switch of the laws."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from kinformer.core.dropout import dropout_attribute


@contextmanager
def drop_share(parts: Sequence[nn.Module], share: float) -> Iterator[None]:
    """Set the dropout rate of parts while the context is entered. Outside of it the laws use no dropout.

    parts: the parts with dropout.
    share: the dropout rate.
    """

    def drop(share: float) -> None:
        for part in parts:
            setattr(part, dropout_attribute(part), share)

    drop(share)
    try:
        yield
    finally:
        drop(0.0)
