"""Unrepeatable: a part that gives another output when it reads the same tokens again in training."""

from typing import NamedTuple

from torch import nn


class Unrepeatable(NamedTuple):
    """The reason of a part, which declares it as its attribute `unrepeatable`.

    Such a part draws random numbers that depend on its weights, or gives another output for a row in pieces than for
    the whole row. A part is repeatable if its draws follow from its seed, its buffers and positions.

    reason: a clause that begins an error message: the behaviour of the part.
    remedy: an imperative that ends the message: the way to avoid it.
    """

    reason: str
    remedy: str


def unrepeatable_parts(model: nn.Module) -> list[Unrepeatable]:
    """List the reasons of the parts of a model that declare one.

    model: the model.
    """
    reasons = (getattr(part, "unrepeatable", None) for part in model.modules())
    return list(dict.fromkeys(reason for reason in reasons if reason is not None))
