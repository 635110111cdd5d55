"""module_hooks: tests whether a module must be called or can be replaced by its formula."""

from torch import nn


def has_hooks(module: nn.Module) -> bool:
    """Return True if a module has hooks, which run only when it is called.

    module: the module.
    """
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks)


def is_plain_linear(module: nn.Module) -> bool:
    """Return True if a module is an nn.Linear without hooks, and not of a subclass of nn.Linear.

    module: the module.
    """
    return type(module) is nn.Linear and not has_hooks(module)
