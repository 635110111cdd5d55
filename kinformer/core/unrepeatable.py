"""Unrepeatable: why a part gives another output when it reads the same tokens again in training."""

from typing import NamedTuple

from torch import nn


class Unrepeatable(NamedTuple):
    """The reason of a part that declares it as its attribute `unrepeatable`.

    Such a part draws by what its weights say of the tokens, or says something else of a row in pieces than of the whole
    row. A part whose draws follow from its seed, its buffers and positions is repeatable.

    reason: what the part does, a clause that begins an error message.
    remedy: what to do instead, an imperative that ends the message.
    """

    reason: str
    remedy: str


def unrepeatable_parts(model: nn.Module) -> list[Unrepeatable]:
    """List the reasons of the parts of a model that declare one."""
    reasons = (getattr(part, "unrepeatable", None) for part in model.modules())
    return list(dict.fromkeys(reason for reason in reasons if reason is not None))
