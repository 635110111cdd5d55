"""watched: which modules must be called, where what they compute could be had in another way."""

from torch import nn


def has_hooks(module: nn.Module) -> bool:
    """Has a module hooks, which are called where it is?"""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks)


def is_plain_linear(module: nn.Module) -> bool:
    """Is it a matrix whose numbers say all: nothing that stands in for one, and nobody looking on?"""
    return type(module) is nn.Linear and not has_hooks(module)
