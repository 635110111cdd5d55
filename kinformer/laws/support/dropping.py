"""Dropout: the parts of a module that have one, and how laws turn it on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn


def drops(module: nn.Module) -> list[nn.Module]:
    """The parts that say what share they drop: `nn.Dropout`, and those with a number `dropout` of their own."""
    own = (isinstance(part, nn.Dropout) or isinstance(vars(part).get("dropout"), float) for part in module.modules())
    return [part for part, yes in zip(module.modules(), own, strict=True) if yes]


@contextmanager
def dropping(parts: Sequence[nn.Module], share: float) -> Iterator[None]:
    """While this lasts, these parts drop so much; before, as everywhere in the laws, they drop nothing."""

    def drop(share: float) -> None:
        for part in parts:
            setattr(part, "p" if isinstance(part, nn.Dropout) else "dropout", share)

    drop(share)
    try:
        yield
    finally:
        drop(0.0)
