"""Dropout: the submodules of a model that have dropout, and their probabilities."""

from torch import nn
from torch.nn.modules.dropout import _DropoutNd  # the base of Dropout, Dropout1d to 3d and both alpha dropouts


def dropout_parts(module: nn.Module) -> list[nn.Module]:
    """Return the submodules with dropout: PyTorch's dropout layers, and parts with a number `dropout`.

    module: the module to search.
    """
    return [
        part
        for part in module.modules()
        if isinstance(part, _DropoutNd) or isinstance(vars(part).get("dropout"), float)
    ]


def largest_dropout(module: nn.Module) -> float:
    """Return the largest dropout probability of a module's parts; 0 if there is none.

    module: the module to search.
    """
    return max((float(getattr(part, dropout_attribute(part))) for part in dropout_parts(module)), default=0.0)


def disable_dropout(module: nn.Module) -> None:
    """Set the dropout of every part to 0, in place.

    module: the module to change.
    """
    for part in dropout_parts(module):
        setattr(part, dropout_attribute(part), 0.0)


def dropout_attribute(part: nn.Module) -> str:
    """Return the name of the attribute that holds the dropout probability of a part: "p" or "dropout".

    part: a part from `dropout_parts`.
    """
    return "p" if isinstance(part, _DropoutNd) else "dropout"
