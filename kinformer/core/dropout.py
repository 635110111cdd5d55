"""Dropping: the parts of a module that have a dropout, and what share they drop."""

from torch import nn
from torch.nn.modules.dropout import _DropoutNd  # the base of Dropout, Dropout1d to 3d and both alpha dropouts


def dropout_parts(module: nn.Module) -> list[nn.Module]:
    """The parts that say what share they drop: PyTorch's dropout layers, and those with a number `dropout`."""
    return [
        part
        for part in module.modules()
        if isinstance(part, _DropoutNd) or isinstance(vars(part).get("dropout"), float)
    ]


def largest_dropout(module: nn.Module) -> float:
    """The largest share that a part drops in training; 0 where none does."""
    return max((float(getattr(part, dropout_attribute(part))) for part in dropout_parts(module)), default=0.0)


def disable_dropout(module: nn.Module) -> None:
    """Set the dropout of every part to 0, in place."""
    for part in dropout_parts(module):
        setattr(part, dropout_attribute(part), 0.0)


def dropout_attribute(part: nn.Module) -> str:
    """The name of the attribute that holds the share that such a part drops."""
    return "p" if isinstance(part, _DropoutNd) else "dropout"
