"""Choice of the device that a command computes on."""

import torch

from kinformer.lab.errors import UserError
from kinformer.lab.machine import default_device


def parse_device(name: str | None) -> torch.device:
    """Return the device with a name.

    name: the name, such as "cpu" or "cuda:1"; the GPU if there is one, otherwise the CPU, if None.

    Errors: UserError if this machine has no such device.
    """
    if name is None:
        return default_device()
    try:
        chosen = torch.device(name)
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        names = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        raise UserError(
            f"there is no device {name!r} on this machine, which has {', '.join(names)}. Give --device {names[-1]}"
        ) from error
    return chosen
