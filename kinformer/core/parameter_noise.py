"""Parameter noise: random changes of initial parameters for tests, because zeros hide computations."""

import torch
from torch import nn

CONSTANT = 0.3  # standard deviation of the noise that replaces equal entries


def add_parameter_noise(module: nn.Module, share: float = 0.0) -> None:
    """Add noise to the parameters of a module, in place, from PyTorch's global generator.

    Choose it before a test of a module's computation, because a layer with weights of 0 gives the same output for every
    input.

    module: the module.
    share: the standard deviation of the noise, divided by the standard deviation of the parameter's entries. A
        parameter with equal entries always gets noise with a standard deviation of 0.3.
    """
    for p in module.parameters():
        if not p.numel():
            continue
        if bool((p == p.flatten()[0]).all()):
            p.data.add_(CONSTANT * torch.randn_like(p))
        elif share:
            p.data.add_(share * p.data.std() * torch.randn_like(p))
