"""Law autocast: products in bfloat16, as `--precision bf16` makes them, leave results and gradients close to float64's.

Hard choices (buckets, clusters, exits) are those of the lower precision in both.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kinformer.core.choice import Choices
from kinformer.core.layer import Out
from kinformer.laws.chunk import chunked
from kinformer.laws.support.finding import Broken, found
from kinformer.laws.support.reading import gradients
from kinformer.laws.support.subject import ROWS, Subject, Trained, twin

SAYS = "under autocast to bfloat16 results and gradients stay finite and close"
OVER = ("layer", "model")
LENGTH = 13
MOST = 2e-2  # of results, as in law dtype
MOST_OF_GRADIENTS = 0.25  # rounding moves some across a corner, as of relu; a product left out or taken twice is 1


def judge(subject: Subject | Trained) -> Iterator[str]:
    """Weights and inputs in float32: a row in one call with its gradients, and in two chunks with a state."""
    rounded, exact = twin(subject.build(), torch.bfloat16)
    low = rounded.float()
    for training in subject.modes(exact) if isinstance(subject, Subject) else (False,):
        yield from found(_whole, subject, low.train(training), exact.train(training))
        if len(subject.states(exact, 1, 4)) > 1:
            yield from found(_cut, subject, low, exact)


def _whole(subject: Any, low: Any, exact: Any) -> None:
    got, want, real = _both(subject, low, exact, subject.call, "one call")
    if want.requires_grad:
        factor = torch.randn(want.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        mine, theirs = (_gradients((y.double() * factor)[real], module) for y, module in ((got, low), (want, exact)))
        _close(mine, theirs, "gradients", MOST_OF_GRADIENTS, "one call")


@torch.no_grad()
def _cut(subject: Any, low: Any, exact: Any) -> None:
    def read(module: Any, batch: Any) -> Out:
        state = subject.start(module, ROWS, LENGTH)
        return chunked(subject, module, batch, [LENGTH // 2, LENGTH - LENGTH // 2], state)

    _both(subject, low, exact, read, "two chunks")


def _both(subject: Any, low: Any, exact: Any, read: Callable[[Any, Any], Out], way: str) -> tuple[Tensor, Tensor, Any]:
    """What is read under autocast and in float64, close to each other, and where it stands."""
    batch, choices = subject.ragged(LENGTH).to(torch.bfloat16), Choices()
    with choices.writing(), torch.autocast("cpu", torch.bfloat16):
        got = read(low, batch.to(torch.float32)).y
    with choices.reading():
        want = read(exact, batch.to(torch.float64)).y
    _close(got.detach()[batch.real], want.detach()[batch.real], "results", MOST, way)
    return got, want, batch.real


def _gradients(numbers: Tensor, module: Any) -> Tensor:
    """Of every parameter, side by side; of what autocast made, but outside of it, as in training."""
    of = gradients(numbers.sum(), module).values()
    every = zip(of, module.parameters(), strict=True)
    return torch.cat([(torch.zeros_like(p) if one is None else one).flatten() for one, p in every])


def _close(low: Tensor, theirs: Tensor, what: str, most: float, way: str) -> None:
    mine = low.double()
    if not mine.isfinite().all():
        raise Broken(f"{int((~mine.isfinite()).sum())} of {mine.numel()} {what} are not finite under autocast ({way})")
    error, size = float((mine - theirs).norm()), float(theirs.norm())
    if error > most * size:
        share = error / size if size else math.inf
        raise Broken(f"the relative error of {what} under autocast is {share:.2g}, above {most:g} ({way})")
