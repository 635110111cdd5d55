"""upgraded: tensors that an earlier version saved, in the form that today's parts have."""

from collections.abc import Mapping

from torch import Tensor, nn


def upgraded(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of `tensors`, by parameter name, in which each part has changed what an earlier version saved of it.

    A part that is stored differently now has a method `upgrade(tensors, prefix)`, which changes entries whose names
    begin with `prefix`. It also gets what an optimiser keeps of each parameter, so it must leave scalars as they are.
    """
    found = dict(tensors)
    for name, part in model.named_modules():
        upgrade = getattr(part, "upgrade", None)
        if callable(upgrade):
            upgrade(found, f"{name}." if name else "")
    return found
