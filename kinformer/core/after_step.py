"""after_step: calls modules after each step of the optimiser, with the statistics that they reported."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def after_step(model: nn.Module, progress: float, stats: Mapping[str, Tensor]) -> None:
    """Call the method `after_step` of every module that has one, once, after a step of the optimiser.

    Each module gets the stats (sums that layers report in `Out.stats`) of itself and its submodules. Their names lose
    the place of the module. A module that is used at several places of the model (a shared layer) gets the sum over its
    places.

    model: the model.
    progress: the finished fraction of the training, from 0 to 1.
    stats: the stats of the step, by name.
    """
    stats_by_module: dict[nn.Module, dict[str, Tensor]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if has_after_step(module):
            mine = stats_by_module.setdefault(module, {})
            for name, value in stats_beneath(path, stats).items():
                mine[name] = mine[name] + value if name in mine else value
    with torch.no_grad():
        for module, mine in stats_by_module.items():
            module.after_step(progress, mine)  # type: ignore[operator]


def has_after_step(module: nn.Module) -> bool:
    """Return True if a module has a method `after_step`.

    module: the module.
    """
    return callable(getattr(module, "after_step", None))


def stats_beneath(path: str, stats: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the stats that a module and its submodules reported, for its method `after_step`.

    The name of a stat is a path of the numbers of sublayers and the names of a model's parts. Other names in the path
    of a module (`body`, `layers`, `mechanism`) occur in no such name and are skipped. The returned names lack the
    module's path.

    path: the path of the module in the model.
    stats: the stats of a step, by name.
    """
    selected: dict[str, Tensor] = {}
    for key, value in stats.items():
        rest = key.split(".")
        for name in filter(None, path.split(".")):
            if len(rest) > 1 and rest[0] == name:
                rest = rest[1:]
            elif name.isdigit():
                break
        else:
            selected[".".join(rest)] = value
    return selected
