"""Function `drop_share`, which switches dropout on for a law."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from kinformer.core.dropout import dropout_attribute


@contextmanager
def drop_share(parts: Sequence[nn.Module], share: float) -> Iterator[None]:
    """Set the dropout rate of modules inside a `with` block; the laws use no dropout outside of it.

    parts: the modules with dropout.
    share: the dropout rate, from 0 to 1.
    """

    def drop(share: float) -> None:
        for part in parts:
            setattr(part, dropout_attribute(part), share)

    drop(share)
    try:
        yield
    finally:
        drop(0.0)
