"""Law dtype: results in bfloat16 and float16 are finite and close to the results of float64.

Both precisions start from the same rounded numbers. Rounding may change a hard choice (of a bucket, cluster or exit).
The float64 call therefore repeats the choices of the lower precision.
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
from kinformer.laws.chunk import call_in_chunks
from kinformer.laws.support.findings import Broken, findings
from kinformer.laws.support.input_batch import InputBatch
from kinformer.laws.support.subject import EFFORT, ROWS, Subject, TrainingSubject, make_rounded_pair

SAYS = "results in bfloat16 and float16 are finite and close to float64"
OVER = ("layer", "model")
LENGTH, FAR = 13, 1000
LONG, CHUNK = 1024 if EFFORT > 1 else 512, 8
KEEPS_NO_SUMS = Pattern, Memory  # they sum no numbers, so a long row is tested only with KINFORMER_PROVE=1
WAYS = ("one call", "far apart", "two chunks", "two chunks, a state in float32")
MOST = {torch.bfloat16: 2e-2, torch.float16: 5e-3}


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Compare results in bfloat16 and float16 with float64, and yield each large difference.

    subject: a layer or model with the part to test.

    A row is computed in one call, and in two chunks with a decoding state. The state has the precision of the module or
    float32. In another case, the positions of a row have a large gap. After it, a low precision cannot distinguish
    neighbouring positions. The law also tests a row of 512 tokens in bfloat16 (1,024 with the environment variable
    KINFORMER_PROVE=1). In bfloat16, a sum of so many numbers no longer grows if one more number is added. A state of
    constant size, such as a sum, is carried through this row in chunks.
    """
    module = subject.build()
    for training in subject.modes(module) if isinstance(subject, Subject) else (False,):
        for dtype, max_error in MOST.items():
            low, exact = make_rounded_pair(module, dtype)
            # float16 adds nothing new in the other two cases
            cases = WAYS if dtype == torch.bfloat16 else WAYS[::2]
            for case in (
                cases if len(subject.states(exact, 1, 4)) > 1 else [entry for entry in cases if entry in WAYS[:2]]
            ):
                yield from findings(
                    _check_near, subject, low.train(training), exact.train(training), dtype, max_error, case
                )
    if isinstance(subject, Subject) and (EFFORT > 1 or not isinstance(subject.part, KEEPS_NO_SUMS)):
        if not (subject.tried or subject.secondary):
            yield from findings(_check_long, subject, *make_rounded_pair(module, torch.bfloat16))


def _check_near(subject: Any, low: Any, exact: Any, dtype: torch.dtype, max_error: float, case: str) -> None:
    batch, name = subject.ragged(LENGTH).to(dtype), str(dtype).removeprefix("torch.")
    if case == "far apart":
        if isinstance(subject, TrainingSubject) or subject.vocab or not _knows_far_positions(subject, exact):
            return
        if isinstance(subject.part, Bias):
            return  # a score that grows with the distance loses digits in any form
        batch = _spread_positions(batch)
    actual, expected = _call_twice(lambda module, of: _result(subject, module, of, case).y, low, exact, batch, dtype)
    if actual.dtype != dtype and isinstance(subject, Subject):
        raise Broken(f"an input in {name} gives an output in {actual.dtype} ({case})")
    _check_close(actual[batch.is_real], expected[batch.is_real], dtype, max_error, case)


def _call_twice(call: Any, low: Any, exact: Any, batch: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the outputs in both precisions with equal hard choices, because rounding may flip a choice."""
    choices, rounded = Choices(), batch.to(dtype)
    with torch.no_grad():
        with choices.record():
            low_result = call(low, rounded)
        with choices.replay():
            return low_result, call(exact, rounded.to(torch.float64))


def _check_close(low: Tensor, exact: Tensor, dtype: torch.dtype, max_error: float, case: str) -> None:
    mine, name = low.double(), str(dtype).removeprefix("torch.")
    if not mine.isfinite().all():
        raise Broken(
            f"{int((~mine.isfinite()).sum())} of {mine.numel()} results in {name} are NaN or infinite ({case})"
        )
    error = float((mine - exact).norm() / exact.norm())
    if not error <= max_error:
        raise Broken(f"the relative error in {name} is {error:.2g}, expected at most {max_error:g} ({case})")


def _carry(subject: Subject, start: Callable[[Any], State | None], module: Any, batch: InputBatch) -> Tensor:
    """Run a row in chunks if the part has a state, else in one call."""
    state, sizes = start(module), [CHUNK] * (LONG // CHUNK)
    return (subject.call(module, batch) if state is None else call_in_chunks(subject, module, batch, sizes, state)).y


def _as_large_for_any_row(subject: Subject, module: Any) -> bool:
    """True if the size of the state does not depend on the length of the row."""
    short, long = ([leaf.shape for _, leaf in leaves(subject.start(module, 1, n))] for n in (2 * LENGTH, 4 * LENGTH))
    return short == long


def _check_long(subject: Subject, low: Any, exact: Any) -> None:
    batch = subject.batch([LONG])
    for training in subject.modes(low):
        low.train(training), exact.train(training)
        starts: list[Callable[[Any], State | None]] = [lambda module: None]
        if subject.no_state(exact) is None and _as_large_for_any_row(subject, exact):
            starts.append(lambda module: subject.start(module, 1, LONG))
        for start in starts:
            call = partial(_carry, subject, start)
            try:
                ours, theirs = _call_twice(call, low, exact, batch, torch.bfloat16)
            except (IndexError, ValueError):
                if _refuses(call, exact, batch):
                    return  # the part does not support rows of this length
                raise
            case = "a long row" if start is starts[0] else f"a long row in chunks of {CHUNK}"
            for part in (slice(None), slice(-LONG // 8, None)):
                _check_close(ours[:, part], theirs[:, part], torch.bfloat16, MOST[torch.bfloat16], case)


def _read(subject: Any, module: Any, batch: Any, case: str) -> Out:
    if case == "one call":
        return subject.call(module, batch)
    return module(batch.x, None, batch.context().replace(run=False))


def _spread_positions(batch: InputBatch) -> InputBatch:
    def shift(pos: Tensor) -> Tensor:
        return pos + FAR * (pos >= LENGTH // 3)

    source_pos = None if batch.source_pos is None else shift(batch.source_pos)
    return dataclasses.replace(batch, pos=shift(batch.pos), source_pos=source_pos)


def _knows_far_positions(subject: Subject, exact: Any) -> bool:
    """Return False if the part rejects far positions: a table ends, and some parts need rows without gaps."""
    try:
        _read(subject, exact, _spread_positions(subject.ragged(LENGTH)), WAYS[1])
    except Exception:
        return False
    return True


def _refuses(call: Callable[[Any, InputBatch], Tensor], exact: Any, batch: InputBatch) -> bool:
    """Return True if the part rejects the row in float64 too."""
    try:
        with torch.no_grad():
            call(exact, batch.to(torch.float64))
    except (IndexError, ValueError):
        return True
    return False


def _result(subject: Any, module: Any, batch: Any, case: str) -> Out:
    if case in WAYS[:2]:
        return _read(subject, module, batch, case)
    lower = next(module.parameters(), batch.x).dtype in MOST
    kind = torch.float32 if case == WAYS[3] and lower else None
    state = subject.start(module, ROWS, LENGTH, kind)
    return call_in_chunks(subject, module, batch, [LENGTH // 2, LENGTH - LENGTH // 2], state)
