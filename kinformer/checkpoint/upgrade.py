"""upgraded: converts tensors saved by an earlier version to the current form."""

from collections.abc import Mapping

from torch import Tensor, nn


def upgrade_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of `tensors`, by parameter name, converted by each part from the form of an earlier version.

    A part whose stored form has changed defines `upgrade(tensors, prefix)`, which converts entries whose names start
    with `prefix`. It is also called with the optimiser's state of each parameter, so it must leave scalars unchanged.
    """
    converted = dict(tensors)
    for name, part in model.named_modules():
        upgrade = getattr(part, "upgrade", None)
        if callable(upgrade):
            upgrade(converted, f"{name}." if name else "")
    return converted
