"""Dropout: how laws turn it on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from kinformer.core.dropout import dropout_attribute


@contextmanager
def drop_share(parts: Sequence[nn.Module], share: float) -> Iterator[None]:
    """While this lasts, these parts drop so much; before, as everywhere in the laws, they drop nothing."""

    def drop(share: float) -> None:
        for part in parts:
            setattr(part, dropout_attribute(part), share)

    drop(share)
    try:
        yield
    finally:
        drop(0.0)
