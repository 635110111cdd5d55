"""Law derivative: gradients agree with difference quotients along random directions."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from kinformer.core.choice import Choices
from kinformer.core.dropout import dropout_parts
from kinformer.core.pattern import Pattern
from kinformer.laws.support.dependences import gradients, real_values
from kinformer.laws.support.dropout_on import drop_share
from kinformer.laws.support.findings import Broken, findings
from kinformer.laws.support.subject import Subject

SAYS = "gradients agree with difference quotients, also with dropout"
OVER = "layer"  # a loss may stop gradients on purpose, for example to train only a probe
LENGTH = 7
STEP, MOST = 1e-6, 1e-5  # a difference quotient in float64 has about eight correct digits
TRIES = 3  # a step across a kink, such as a ReLU's or a window's edge, proves nothing


def judge(subject: Subject) -> Iterator[str]:
    """Compare gradients of a layer with difference quotients, and yield a sentence for each difference.

    subject: a layer with the part to test.

    A difference quotient is the change of the output by a small step of x and all parameters, divided by the step. Hard
    choices (of buckets, clusters or exits) stay fixed in these steps. The row is short enough that the part stops no
    gradient in it. With dropout, a part that computes its forward pass again in the backward pass must drop the same
    numbers.
    """
    module = subject.build()
    length = _unstopped_length(module)
    for training in subject.modes(module):
        yield from findings(_check_along, subject, module, length, f"in {'train' if training else 'eval'} mode")
    if dropout_parts(module):
        with drop_share(dropout_parts(module), 0.3):
            yield from findings(_check_along, subject, module.train(), length, "in train mode, with dropout")


def _unstopped_length(module: Any) -> int:
    """Return the longest row, up to LENGTH, in which no pair has a stopped gradient."""
    stops = [p for part in module.modules() if isinstance(p := getattr(part, "gradient_stops", None), Pattern)]
    return max((n for n in range(1, LENGTH + 1) if not any(p.matrix(n).tril().any() for p in stops)), default=1)


def _check_along(subject: Subject, module: Any, length: int, where: str) -> None:
    batch, choices = subject.ragged(length), Choices()
    variables = {key: p for key, p in module.named_parameters() if p.requires_grad}
    by_x = not subject.vocab
    if by_x:
        batch = dataclasses.replace(batch, x=batch.x.clone().requires_grad_())

    def value() -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            out = subject.call(module, batch)
        return torch.stack([(row * _weights(row)).sum() for row in real_values(out.y, batch)]).sum()

    with choices.record(), torch.random.fork_rng(devices=[]):
        total = value()
        torch.manual_seed(1)  # a backward that draws new random numbers must not get the same ones by accident
        slopes = gradients(total, module, **({"x": batch.x} if by_x else {}))
    variables |= {"x": batch.x} if by_x else {}

    def replay_value() -> float:
        # without gradients, a part may use another code path with other random numbers
        with choices.replay(), torch.enable_grad():
            return float(value().detach())

    if (wrong := _find_mismatch(variables, slopes, replay_value)) is None:
        return
    broken = next(
        (key for key, x in variables.items() if _find_mismatch({key: x}, slopes, replay_value) is not None),
        "x and parameters",
    )
    raise Broken(
        f"{where}, the gradient along a direction of {broken} is {wrong[0]:.6g}, but the difference quotient is "
        f"{wrong[1]:.6g}"
    )


def _weights(row: Tensor) -> Tensor:
    return torch.arange(1.0, row.numel() + 1).to(row).view_as(row).sin()


@torch.no_grad()
def _find_mismatch(
    variables: Mapping[str, Tensor], slopes: Mapping[str, Tensor | None], value: Callable[[], float]
) -> tuple[float, float] | None:
    """Return slope and difference quotient if they differ along every tried direction, else None."""
    originals = {name: x.clone() for name, x in variables.items()}
    for seed in range(TRIES):
        g = torch.Generator().manual_seed(seed)
        along = {name: torch.randn(x.shape, generator=g, dtype=x.dtype) for name, x in variables.items()}
        ends = []
        for sign in (1, -1):
            for name, x in variables.items():
                x.copy_(originals[name] + sign * STEP * along[name])
            ends.append(value())
        for name, x in variables.items():
            x.copy_(originals[name])
        changes = (ends[0] - ends[1]) / (2 * STEP)
        says = sum(float((slope * along[name]).sum()) for name in variables if (slope := slopes[name]) is not None)
        if abs(says - changes) <= MOST * max(1.0, abs(changes)):
            return None
    return says, changes
