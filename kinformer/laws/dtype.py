"""Law dtype: bfloat16 and float16 give finite results near those of float64 from the same rounded numbers.

Hard choices (buckets, clusters, exits) are those of the lower precision in both.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kinformer.core.bias import Bias
from kinformer.core.choice import Choices
from kinformer.core.layer import Out
from kinformer.laws.chunk import chunked
from kinformer.laws.support.batch import Batch
from kinformer.laws.support.finding import Broken, found
from kinformer.laws.support.subject import ROWS, Subject, Trained, twin

SAYS = "bfloat16 and float16 stay finite and close"
OVER = ("layer", "model")
LENGTH, FAR = 13, 1000
WAYS = ("one call", "far apart", "two chunks", "two chunks, a state in float32")
MOST = {torch.bfloat16: 2e-2, torch.float16: 5e-3}


def judge(subject: Subject | Trained) -> Iterator[str]:
    """Without a state, and with one, in two chunks, made in the module's own precision or in single precision.

    Also with a gap in the positions, behind which a low precision cannot tell one position from the next.
    """
    module = subject.build()
    for training in subject.modes(module) if isinstance(subject, Subject) else (False,):
        for dtype, most in MOST.items():
            low, exact = twin(module, dtype)
            # what is new in the other two is the same in float16
            ways = WAYS if dtype == torch.bfloat16 else WAYS[::2]
            for way in ways if len(subject.states(exact, 1, 4)) > 1 else [one for one in ways if one in WAYS[:2]]:
                yield from found(_near, subject, low.train(training), exact.train(training), dtype, most, way)


def _near(subject: Any, low: Any, exact: Any, dtype: torch.dtype, most: float, way: str) -> None:
    batch, name = subject.ragged(LENGTH).to(dtype), str(dtype).removeprefix("torch.")
    if way == "far apart":
        if isinstance(subject, Trained) or subject.vocab or not _goes_so_far(subject, exact):
            return
        if isinstance(subject.part, Bias):
            return  # a score that grows with distance loses digits, however distances were told
        batch = _apart(batch)
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


def _read(subject: Any, module: Any, batch: Any, way: str) -> Out:
    if way == "one call":
        return subject.call(module, batch)
    return module(batch.x, None, batch.context().but(run=False))


def _apart(batch: Batch) -> Batch:
    def moved(pos: Tensor) -> Tensor:
        return pos + FAR * (pos >= LENGTH // 3)

    source_pos = None if batch.source_pos is None else moved(batch.source_pos)
    return dataclasses.replace(batch, pos=moved(batch.pos), source_pos=source_pos)


def _goes_so_far(subject: Subject, exact: Any) -> bool:
    """Does it know such positions? A table of them ends somewhere, and some want rows without gaps."""
    try:
        _read(subject, exact, _apart(subject.ragged(LENGTH)), WAYS[1])
    except Exception:
        return False
    return True


def _result(subject: Any, module: Any, batch: Any, way: str) -> Out:
    with torch.no_grad():
        if way in WAYS[:2]:
            return _read(subject, module, batch, way)
        lower = next(module.parameters(), batch.x).dtype in MOST
        kind = torch.float32 if way == WAYS[3] and lower else None
        state = subject.start(module, ROWS, LENGTH, kind)
        return chunked(subject, module, batch, [LENGTH // 2, LENGTH - LENGTH // 2], state)
