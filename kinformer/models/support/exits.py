"""Rules of exits that no loss would train."""

from torch import nn

from kinformer.core.layer import Layer
from kinformer.depth.early_exit import EarlyExit


def refuse_rules(model: nn.Module, body: Layer) -> None:
    """ValueError where an `EarlyExit` in the body has a rule that learns: the model's loss would leave it as it began.

    A rule whose parameters are frozen may decide anywhere.
    """
    for part in body.modules():
        if isinstance(part, EarlyExit) and any(p.requires_grad for p in part.rule.parameters()):
            name, rule = type(model).__name__, type(part.rule).__name__
            raise ValueError(f"{name} would train nothing of {rule}, the rule of its EarlyExit; use MultiExit over it")
