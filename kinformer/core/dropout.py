"""Dropping: the parts of a module that have a dropout, and what share they drop."""

from torch import nn


def dropout_parts(module: nn.Module) -> list[nn.Module]:
    """The parts that say what share they drop: `nn.Dropout`, and those with a number `dropout` of their own."""
    drops = (isinstance(part, nn.Dropout) or isinstance(vars(part).get("dropout"), float) for part in module.modules())
    return [part for part, yes in zip(module.modules(), drops, strict=True) if yes]


def largest_dropout(module: nn.Module) -> float:
    """The largest share that a part drops in training; 0 where none does."""
    shares = (part.p if isinstance(part, nn.Dropout) else part.dropout for part in dropout_parts(module))
    return max((float(share) for share in shares), default=0.0)  # type: ignore[arg-type]


def disable_dropout(module: nn.Module) -> None:
    """Set the dropout of every part to 0, in place."""
    for part in dropout_parts(module):
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        else:
            part.dropout = 0.0  # type: ignore[assignment]
