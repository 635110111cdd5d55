"""after_step: modules that want to know are told that the optimiser has made a step, each of its own stats."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def after_step(model: nn.Module, progress: float, stats: Mapping[str, Tensor]) -> None:
    """Tell every module that wants to know, once, that the optimiser has made a step.

    Each gets the stats that were reported at its place or beneath, the place cut off their names; a module that stands
    at several places, as layers that share it have it, gets the sum over them.
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
    """True if a module has `after_step`."""
    return callable(getattr(module, "after_step", None))


def stats_beneath(path: str, stats: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stats that were reported at a module's path or beneath it.

    Layers report under the number of a sublayer, models under the name of a part; other names of a path (`body`,
    `layers`, `mechanism`) stand in no key.
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
