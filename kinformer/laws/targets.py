"""Law 13, loss targets: an auxiliary loss moves exactly the parameters that its Penalty declares."""

import torch

from kinformer.core.loss import Penalty, gathered
from kinformer.laws.broken import Broken
from kinformer.laws.subject import Subject

LENGTH = 9


def reports(subject: Subject, penalty: Penalty) -> bool:
    """Does this subject report the penalty's key in its aux, in train mode?"""
    batch = subject.ragged(LENGTH)
    return penalty.key in gathered(subject.call(subject.build().train(), batch).aux, batch.real)


def check(subject: Subject, penalty: Penalty) -> None:
    """The gradient of the penalty alone, in train mode."""
    module = subject.build().train()
    batch = subject.ragged(LENGTH)
    value = gathered(subject.call(module, batch).aux, batch.real)[penalty.key]
    parameters = dict(module.named_parameters())
    if not value.requires_grad:
        raise Broken(f"the loss {penalty.key!r} depends on no parameter at all")
    gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    moved = {name for name, g in zip(parameters, gradients, strict=True) if g is not None and bool((g != 0).any())}
    declared = {name for name in parameters if penalty.moves(name)}
    if not declared:
        raise Broken(f"the loss {penalty.key!r} declares none of {sorted(parameters)}")
    if moved != declared:
        more, less = sorted(moved - declared), sorted(declared - moved)
        raise Broken(
            f"the loss {penalty.key!r} moves {more} without declaring it, and declares {less} without moving it"
        )
