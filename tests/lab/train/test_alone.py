"""What a loss trains alone, and no other loss reaches: it is declared, and how large it is changes nothing else."""

import copy

import pytest
import torch
from torch import Tensor

from kinformer.core.loss import Loss, penalties_of
from kinformer.core.model import Model
from kinformer.lab.data.batches import Batches
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.optimiser import clip_groups
from kinformer.lab.train.settings import Settings
from kinformer.lab.train.train import train
from kinformer.laws.support.dependences import trainable
from kinformer.laws.support.verdicts import JudgedPart
from tests.discovered import discovered

EXAMPLES = [*discovered("models"), *discovered("members")]
FIRST = [
    pytest.param(example, marks=[pytest.mark.prove] * (not example.name.endswith(".0")), id=example.name)
    for example in EXAMPLES
]


def reached(model: Model, loss: Loss) -> dict[str, set[str]]:
    """The parameters that each part of a loss trains."""
    names, parameters = zip(*trainable(model).items(), strict=True)
    trained_by_part = {}
    for part, value in loss.parts.items():
        if value.requires_grad:
            gradients = torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=True)
            trained_by_part[part] = {
                name for name, gradient in zip(names, gradients, strict=True) if gradient is not None
            }
    return trained_by_part


def lonely(model: Model) -> list[torch.nn.Parameter]:
    """The parameters that a penalty trains alone and without moving what lies beneath its part."""
    every = [penalty for penalties in penalties_of(model).values() for penalty in penalties]
    return [p for penalty in every if penalty.alone and not penalty.reaches_x for p in penalty.trains]


@torch.no_grad()
def read_by_others(model: Model) -> bool:
    """Whether the loss of the text depends on the values of these parameters, though it does not train them."""
    other, batch = copy.deepcopy(model).train(), model.sample(3, 13, 0)
    before = other(batch).parts["nll"].item()
    for p in lonely(other):
        p.add_(1.0)
    return other(batch).parts["nll"].item() != before


@pytest.mark.parametrize("example", FIRST)
def test_what_learns_alone_is_declared_and_its_size_changes_no_other_weight(example: JudgedPart) -> None:
    model = example.make()
    if isinstance(model, Model):
        check_declared(model)
        check_size(model)


def check_declared(model: Model) -> None:
    """A part of a loss whose parameters no other part trains is clipped apart from all others."""
    loss = model.train()(model.sample(2, 13, 0))
    if len(loss.parts) == 1:
        return
    apart = [{id(p) for p in group} for group in clip_groups(model)[1:]]
    by_part = reached(model, loss)
    for part, mine in by_part.items():
        rest = set().union(*(theirs for other, theirs in by_part.items() if other != part))
        if mine and rest and not mine & rest and part != "nll":
            assert {id(dict(model.named_parameters())[name]) for name in mine} in apart, part


def check_size(model: Model) -> None:
    """Steps at a clip that shrinks every gradient, and again with its gradient a thousand times as large.

    Where other parts read what it makes, as attention reads compressed memories, they differ after the first step.
    """
    if not lonely(model):
        return
    other = copy.deepcopy(model)
    for p in lonely(other):
        p.register_hook(lambda gradient: 1000 * gradient)
    data, steps = Batches([model.sample(3, 13, seed) for seed in range(5)]), 1 if read_by_others(model) else 5
    weights: list[dict[str, Tensor]] = []
    for candidate in (model, other):
        train(candidate, data, StepBudget(steps), Settings(batch=3, length=12, lr=1e-2, clip=1e-3, measures=1))
        own = {id(p) for p in lonely(candidate)}
        weights.append({name: p.detach() for name, p in candidate.named_parameters() if id(p) not in own})
    assert weights[0].keys() == weights[1].keys() and len(weights[0]) > 4
    assert all(torch.equal(weights[1][name], weight) for name, weight in weights[0].items())
