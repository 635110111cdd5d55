"""upgrade_tensors: convert tensors saved by an earlier version to the current form."""

from collections.abc import Mapping

from torch import Tensor, nn


def upgrade_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of saved tensors in which each part has converted tensors of an earlier version.

    A part (module of the model) whose tensors have changed since then defines `upgrade(tensors, prefix)`. It changes
    the entries of `tensors` with names that start with `prefix`. It is also called with the optimizer's state of each
    parameter, so it must leave scalars unchanged.

    model: model that loads the tensors.
    tensors: saved tensors by parameter name.
    """
    converted = dict(tensors)
    for name, part in model.named_modules():
        upgrade = getattr(part, "upgrade", None)
        if callable(upgrade):
            upgrade(converted, f"{name}." if name else "")
    return converted
