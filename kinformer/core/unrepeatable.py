"""Unrepeatable: a part whose output in training may differ when it gets the same tokens again."""

from typing import NamedTuple

from torch import nn


class Unrepeatable(NamedTuple):
    """The reason why a part's output may differ when it gets the same tokens again in training.

    The part declares it as its attribute `unrepeatable`. Such a part uses random numbers that depend on its weights, or
    gives another output for a row in pieces than for the whole row. A part is repeatable if its random numbers depend
    only on its seed, its buffers and positions.

    reason: the beginning of an error message: the behaviour of the part.
    remedy: the end of the message: the way to avoid it, as an imperative.
    """

    reason: str
    remedy: str


def unrepeatable_parts(model: nn.Module) -> list[Unrepeatable]:
    """Return the reasons why parts of a model are not repeatable, as they declare them.

    model: the model.
    """
    reasons = (getattr(part, "unrepeatable", None) for part in model.modules())
    return list(dict.fromkeys(reason for reason in reasons if reason is not None))
