"""Law dtype: bfloat16 and float16 give finite results near those of float64 from the same rounded numbers.

Hard choices (buckets, clusters, exits) are those of the lower precision in both.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kinformer.core.bias import Bias
from kinformer.core.choice import Choices
from kinformer.core.layer import Out, State
from kinformer.core.memory import Memory
from kinformer.core.pattern import Pattern
from kinformer.core.state import leaves
from kinformer.laws.chunk import chunked
from kinformer.laws.support.batch import Batch
from kinformer.laws.support.finding import Broken, found
from kinformer.laws.support.subject import EFFORT, ROWS, Subject, Trained, twin

SAYS = "bfloat16 and float16 stay finite and close"
OVER = ("layer", "model")
LENGTH, FAR = 13, 1000
LONG, CHUNK = 1024 if EFFORT > 1 else 512, 8
KEEPS_NO_SUMS = Pattern, Memory  # they sum no numbers, so only the long run tests a long row
WAYS = ("one call", "far apart", "two chunks", "two chunks, a state in float32")
MOST = {torch.bfloat16: 2e-2, torch.float16: 5e-3}


def judge(subject: Subject | Trained) -> Iterator[str]:
    """Without a state, and with one, in two chunks, made in the module's own precision or in single precision.

    Also with a gap in the positions, after which a low precision cannot distinguish neighbouring positions. In bfloat16
    also a row of 512 tokens, 1,024 in the long run: there a sum of many numbers no longer grows when a number is added.
    A state of constant size, such as a sum, is carried through that row in chunks.
    """
    module = subject.build()
    for training in subject.modes(module) if isinstance(subject, Subject) else (False,):
        for dtype, most in MOST.items():
            low, exact = twin(module, dtype)
            # what is new in the other two is the same in float16
            ways = WAYS if dtype == torch.bfloat16 else WAYS[::2]
            for way in ways if len(subject.states(exact, 1, 4)) > 1 else [one for one in ways if one in WAYS[:2]]:
                yield from found(_near, subject, low.train(training), exact.train(training), dtype, most, way)
    if isinstance(subject, Subject) and (EFFORT > 1 or not isinstance(subject.part, KEEPS_NO_SUMS)):
        if not (subject.tried or subject.again):
            yield from found(_long, subject, *twin(module, torch.bfloat16))


def _near(subject: Any, low: Any, exact: Any, dtype: torch.dtype, most: float, way: str) -> None:
    batch, name = subject.ragged(LENGTH).to(dtype), str(dtype).removeprefix("torch.")
    if way == "far apart":
        if isinstance(subject, Trained) or subject.vocab or not _goes_so_far(subject, exact):
            return
        if isinstance(subject.part, Bias):
            return  # a score that grows with distance loses digits, however distances were told
        batch = _apart(batch)
    got, want = _both(lambda module, of: _result(subject, module, of, way).y, low, exact, batch, dtype)
    if got.dtype != dtype and isinstance(subject, Subject):
        raise Broken(f"numbers in {name} go in and {got.dtype} comes out ({way})")
    _close(got[batch.real], want[batch.real], dtype, most, way)


def _both(call: Any, low: Any, exact: Any, batch: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The outputs in low and exact precision, with equal hard choices, because rounding may flip a choice."""
    choices, rounded = Choices(), batch.to(dtype)
    with torch.no_grad():
        with choices.writing():
            got = call(low, rounded)
        with choices.reading():
            return got, call(exact, rounded.to(torch.float64))


def _close(low: Tensor, exact: Tensor, dtype: torch.dtype, most: float, case: str) -> None:
    mine, name = low.double(), str(dtype).removeprefix("torch.")
    if not mine.isfinite().all():
        raise Broken(f"{int((~mine.isfinite()).sum())} of {mine.numel()} results are not finite in {name} ({case})")
    error = float((mine - exact).norm() / exact.norm())
    if not error <= most:
        raise Broken(f"the relative error in {name} is {error:.2g}, above {most:g} ({case})")


def _carried(subject: Subject, start: Callable[[Any], State | None], module: Any, batch: Batch) -> Tensor:
    """Run a row in chunks if the part has a state, else in one call."""
    state, sizes = start(module), [CHUNK] * (LONG // CHUNK)
    return (subject.call(module, batch) if state is None else chunked(subject, module, batch, sizes, state)).y


def _as_large_for_any_row(subject: Subject, module: Any) -> bool:
    """True if the size of the state does not depend on the length of the row."""
    short, long = ([leaf.shape for _, leaf in leaves(subject.start(module, 1, n))] for n in (2 * LENGTH, 4 * LENGTH))
    return short == long


def _long(subject: Subject, low: Any, exact: Any) -> None:
    batch = subject.batch([LONG])
    for training in subject.modes(low):
        low.train(training), exact.train(training)
        starts: list[Callable[[Any], State | None]] = [lambda module: None]
        if subject.no_state(exact) is None and _as_large_for_any_row(subject, exact):
            starts.append(lambda module: subject.start(module, 1, LONG))
        for start in starts:
            call = partial(_carried, subject, start)
            try:
                ours, theirs = _both(call, low, exact, batch, torch.bfloat16)
            except (IndexError, ValueError):
                if _refuses(call, exact, batch):
                    return  # it knows no rows so long
                raise
            case = "a long row" if start is starts[0] else f"a long row in chunks of {CHUNK}"
            for part in (slice(None), slice(-LONG // 8, None)):
                _close(ours[:, part], theirs[:, part], torch.bfloat16, MOST[torch.bfloat16], case)


def _read(subject: Any, module: Any, batch: Any, way: str) -> Out:
    if way == "one call":
        return subject.call(module, batch)
    return module(batch.x, None, batch.context().replace(run=False))


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


def _refuses(call: Callable[[Any, Batch], Tensor], exact: Any, batch: Batch) -> bool:
    """Whether a part refuses a row in float64 too."""
    try:
        with torch.no_grad():
            call(exact, batch.to(torch.float64))
    except (IndexError, ValueError):
        return True
    return False


def _result(subject: Any, module: Any, batch: Any, way: str) -> Out:
    if way in WAYS[:2]:
        return _read(subject, module, batch, way)
    lower = next(module.parameters(), batch.x).dtype in MOST
    kind = torch.float32 if way == WAYS[3] and lower else None
    state = subject.start(module, ROWS, LENGTH, kind)
    return chunked(subject, module, batch, [LENGTH // 2, LENGTH - LENGTH // 2], state)
