"""Parameter noise: a change of start values, so that a zero at the start hides no computation."""

import torch
from torch import nn

CONSTANT = 0.3  # standard deviation of the noise that replaces equal entries


def add_parameter_noise(module: nn.Module, share: float = 0.0) -> None:
    """Add noise to the parameters of a module, in place, from PyTorch's global generator.

    Choose it before a test of a module's computation: a head of zeros gives the same output for every input.

    module: the module.
    share: noise for a parameter with unequal entries, as a share of their standard deviation. A parameter with equal
        entries always gets noise with a standard deviation of 0.3.
    """
    for p in module.parameters():
        if not p.numel():
            continue
        if bool((p == p.flatten()[0]).all()):
            p.data.add_(CONSTANT * torch.randn_like(p))
        elif share:
            p.data.add_(share * p.data.std() * torch.randn_like(p))
