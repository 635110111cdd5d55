"""Law autocast: results and gradients under autocast to bfloat16 are close to the results of float64.

The training option `--precision bf16` uses this autocast. Weights and inputs are arbitrary float32 numbers. Rounding
may change a hard choice (of a bucket, cluster or exit). The float64 call therefore repeats the choices of bfloat16.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from kinformer.core.choice import Choices
from kinformer.core.layer import Out
from kinformer.laws.chunk import call_in_chunks
from kinformer.laws.support.dependences import gradients
from kinformer.laws.support.findings import Broken, findings
from kinformer.laws.support.subject import EFFORT, ROWS, Subject, TrainingSubject

SAYS = "under autocast to bfloat16, outputs, aux, stats and gradients are finite and close to float64"
OVER = ("layer", "model")
LENGTH = 13
MOST = 2e-2  # largest relative error of results and of each report, as in law dtype
MOST_OF_GRADIENTS = 0.35  # rounding may cross a kink such as relu's; a missing or doubled product has an error of 1
SMALL = 0.1  # least norm that divides an error, as a share of all gradients: rounding of large ones reaches small ones


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Compare numbers under autocast to bfloat16 with float64, and yield each large difference.

    subject: a layer or model with the part to test.

    The numbers are outputs, further results (`Out.aux` and `Out.stats`), and gradients. A row is computed in one call,
    and in two chunks with a decoding state. A layer is tested in eval mode. If it contains a memory (states carried
    between chunks), it is also tested in train mode, because the memory then has another state. A loss is tested in
    train mode. With the environment variable KINFORMER_PROVE=1, all are tested in both modes.
    """
    low = subject.build().float()
    exact = copy.deepcopy(low).double()
    for training in _modes(subject, exact):
        yield from findings(_check_one_call, subject, low.train(training), exact.train(training))
        if len(subject.states(exact, 1, 4)) > 1:
            yield from findings(_check_chunks, subject, low, exact)


def _modes(subject: Subject | TrainingSubject, module: Any) -> tuple[bool, ...]:
    if EFFORT > 1:
        return False, True
    return (True,) if isinstance(subject, TrainingSubject) else tuple(subject.modes(module))


def _check_one_call(subject: Any, low: Any, exact: Any) -> None:
    def read(module: Any, batch: Any) -> tuple[Out, Tensor | None]:
        of_numbers = isinstance(subject, Subject) and not subject.vocab
        return subject.call_traced(module, batch) if of_numbers else (subject.call(module, batch), None)

    _compare(subject, low, exact, read, "one call")


def _check_chunks(subject: Any, low: Any, exact: Any) -> None:
    def read(module: Any, batch: Any) -> tuple[Out, None]:
        state = subject.start(module, ROWS, LENGTH)
        return call_in_chunks(subject, module, batch, [LENGTH // 2, LENGTH - LENGTH // 2], state), None

    _compare(subject, low, exact, read, "two chunks")


def _compare(
    subject: Any, low: Any, exact: Any, read: Callable[[Any, Any], tuple[Out, Tensor | None]], case: str
) -> None:
    """Compare two precisions; `read` returns the output of a module and the input for gradients, if any."""
    batch, choices = subject.ragged(LENGTH).to(torch.float32), Choices()
    with choices.record(), torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(0)
        actual, x = read(low, batch)
    with choices.replay():
        torch.manual_seed(0)
        expected, exact_x = read(exact, batch.to(torch.float64))
    mine, theirs = _real_numbers(actual, batch), _real_numbers(expected, batch)
    for name, value in theirs.items():
        _close(mine[name], value, name, MOST, case)
    mine, theirs = _gradients(mine, low, x), _gradients(theirs, exact, exact_x)
    least = SMALL * math.hypot(*(float(value.norm()) for value in theirs.values()))
    for name, value in theirs.items():
        _close(mine[name], value, f"the gradient of {name}", MOST_OF_GRADIENTS, case, least)


def _real_numbers(out: Out, batch: Any) -> dict[str, Tensor]:
    """Return all numbers of a call by name; numbers of tokens are restricted to real positions."""
    every = {"the results": out.y, **{f"aux {name!r}": value for name, value in out.aux.items()}}
    every |= {f"stats {name!r}": value for name, value in out.stats.items()}
    return {
        name: value[batch.is_real] if batch.pos is not None and value.shape[:2] == batch.pos.shape else value
        for name, value in every.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }


def _gradients(values: Mapping[str, Tensor], module: Any, x: Tensor | None) -> dict[str, Tensor]:
    """Return gradients by the input and every parameter, computed outside of autocast as in training."""
    generator = torch.Generator().manual_seed(0)
    terms = [(value.double() * torch.randn(value.shape, generator=generator)).sum() for value in values.values()]
    by_name = gradients(torch.stack(terms).sum(), module, **({} if x is None else {"x": x}))
    return {name: torch.zeros(()) if value is None else value for name, value in by_name.items()}


def _close(low: Tensor, theirs: Tensor, name: str, max_error: float, case: str, least: float = 0.0) -> None:
    mine, theirs = low.detach().double(), theirs.detach()
    if not mine.isfinite().all():
        raise Broken(
            f"{name}: {int((~mine.isfinite()).sum())} of {mine.numel()} numbers are NaN or infinite under autocast "
            f"({case})"
        )
    error, size = float((mine - theirs).norm()), max(float(theirs.norm()), least)
    if error > max_error * size:
        share = error / size if size else math.inf
        raise Broken(
            f"{name}: the relative error under autocast is {share:.2g}, expected at most {max_error:g} ({case})"
        )
