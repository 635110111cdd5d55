"""Law 7, dtype: bfloat16 and float16 give finite results near those of float64 from the same rounded numbers."""

from typing import Any

import torch

from kinformer.core.layer import Out
from kinformer.laws.batch import Batch
from kinformer.laws.broken import Broken
from kinformer.laws.chunk import chunked
from kinformer.laws.subject import Subject, twin

LENGTH = 13
MOST = {torch.bfloat16: 2e-2, torch.float16: 5e-3}


def check(subject: Subject) -> None:
    """Without a state, and with one in two chunks."""
    for training in subject.modes(subject.build()):
        for dtype, most in MOST.items():
            low, exact = twin(subject.build(), dtype)
            low.train(training), exact.train(training)
            batch = subject.ragged(LENGTH).to(dtype)
            ways = ("one call", "two chunks") if subject.no_state(exact) is None else ("one call",)
            for way in ways:
                got = _result(subject, low, batch, dtype, way)
                want = _result(subject, exact, batch.to(torch.float64), torch.float64, way)
                _near(got, want, batch, dtype, most, way)


def _result(subject: Subject, module: Any, batch: Batch, dtype: torch.dtype, way: str) -> Out:
    with torch.no_grad():
        if way == "one call":
            return subject.call(module, batch)
        state = subject.start(module, 3, LENGTH, dtype)
        return chunked(subject, module, batch, [LENGTH // 2, LENGTH - LENGTH // 2], state)


def _near(got: Out, want: Out, batch: Batch, dtype: torch.dtype, most: float, way: str) -> None:
    name = str(dtype).removeprefix("torch.")
    if got.y.dtype != dtype:
        raise Broken(f"numbers in {name} go in and {got.y.dtype} comes out ({way})")
    mine, theirs = got.y.double()[batch.real], want.y[batch.real]
    if not mine.isfinite().all():
        raise Broken(f"{int((~mine.isfinite()).sum())} of {mine.numel()} results are not finite in {name} ({way})")
    error = float((mine - theirs).norm() / theirs.norm())
    if error > most:
        raise Broken(f"the relative error in {name} is {error:.2g}, above {most:g} ({way})")
