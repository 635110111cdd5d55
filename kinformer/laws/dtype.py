"""Law dtype: bfloat16 and float16 give finite results near those of float64 from the same rounded numbers.

Hard choices (buckets, clusters, exits) are those of the lower precision in both.
"""

from collections.abc import Iterator
from typing import Any

import torch

from kinformer.core.choice import Choices
from kinformer.core.layer import Out
from kinformer.laws.chunk import chunked
from kinformer.laws.support.finding import Broken, found
from kinformer.laws.support.subject import ROWS, Subject, Trained, twin

SAYS = "bfloat16 and float16 stay finite and close"
OVER = ("layer", "model")
LENGTH = 13
MOST = {torch.bfloat16: 2e-2, torch.float16: 5e-3}


def judge(subject: Subject | Trained) -> Iterator[str]:
    """Without a state, and with one, made in the module's own precision, in two chunks."""
    module = subject.build()
    for training in subject.modes(module) if isinstance(subject, Subject) else (False,):
        for dtype, most in MOST.items():
            low, exact = twin(module, dtype)
            for way in ("one call", "two chunks")[: len(subject.states(exact, 1, 4))]:
                yield from found(_near, subject, low.train(training), exact.train(training), dtype, most, way)


def _near(subject: Any, low: Any, exact: Any, dtype: torch.dtype, most: float, way: str) -> None:
    batch, name = subject.ragged(LENGTH).to(dtype), str(dtype).removeprefix("torch.")
    choices = Choices()  # rounding moves a vector over a border now and then, which is no error of arithmetic
    with choices.writing():
        got = _result(subject, low, batch, way)
    with choices.reading():
        want = _result(subject, exact, batch.to(torch.float64), way)
    if got.y.dtype != dtype and isinstance(subject, Subject):
        raise Broken(f"numbers in {name} go in and {got.y.dtype} comes out ({way})")
    mine, theirs = got.y.double()[batch.real], want.y[batch.real]
    if not mine.isfinite().all():
        raise Broken(f"{int((~mine.isfinite()).sum())} of {mine.numel()} results are not finite in {name} ({way})")
    error = float((mine - theirs).norm() / theirs.norm())
    if error > most:
        raise Broken(f"the relative error in {name} is {error:.2g}, above {most:g} ({way})")


def _result(subject: Any, module: Any, batch: Any, way: str) -> Out:
    with torch.no_grad():
        if way == "one call":
            return subject.call(module, batch)
        state = subject.start(module, ROWS, LENGTH)
        return chunked(subject, module, batch, [LENGTH // 2, LENGTH - LENGTH // 2], state)
