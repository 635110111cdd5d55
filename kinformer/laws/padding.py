"""Law padding: positions of -1, left or right, change nothing elsewhere, whatever stands there."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kinformer.laws.support.batch import Batch, placed, positions
from kinformer.laws.support.compare import agree, agree_names, agree_states
from kinformer.laws.support.finding import Broken, Unjudged, smallest
from kinformer.laws.support.reading import ROUNDING, gradients, loss, real
from kinformer.laws.support.subject import EFFORT, ROWS, SOURCE, Subject, Trained

SAYS = "padding changes nothing, left or right, in values and gradients"
OVER = ("layer", "model")
LENGTH = 13


def judge(subject: Subject | Trained) -> Iterator[str]:
    """Rows padded right, left, with other garbage: values, aux, states, gradients of a loss on real positions.

    Of a model of tokens, whose padding is -1: its loss, what it counts and what it is measured by.
    """
    module = subject.build()
    if isinstance(subject, Trained):
        if not hasattr(module, "logits"):
            raise Unjudged("it says nothing of tokens, so nobody knows what padding is to it")
        yield from smallest(_told, LENGTH, subject, module)
        return
    for _ in subject.modes(module):
        for seed in range(EFFORT):
            yield from smallest(_move, LENGTH + 5 * seed, subject, module, seed)


def _move(length: int, subject: Subject, module: Any, seed: int) -> None:
    lengths = [length, max(1, length - 3), max(1, length // 2)]
    columns = length + 4
    ends = [columns - n for n in lengths]
    tight = subject.batch(lengths, columns=length, seed=seed)
    moved = {
        "right": subject.batch(lengths, columns=columns, seed=seed),
        "left": subject.batch(lengths, ends, columns, seed=seed),
        "on both sides": subject.batch(lengths, [n // 2 for n in ends], columns, seed=seed),
    }
    want = _values(subject, module, tight)
    for where, batch in moved.items():
        sentence = f"rows of {lengths} tokens give another result with more padding {where}"
        _compare(sentence, want, _values(subject, module, batch))
    for where, batch in (("x", _spoiled(tight)), ("the source", _resourced(subject, tight, seed))):
        _compare(f"what stands at padding of {where} matters", want, _values(subject, module, batch))
    _stats(subject, module, tight, moved)
    if subject.no_state(module) is None:
        states = [
            subject.call(module, batch, subject.start(module, 3, length)).state for batch in (tight, *moved.values())
        ]
        for where, state in zip(moved, states[1:], strict=True):
            agree_states(state, states[0], f"rows of {lengths} tokens leave another state with more padding {where}")


def _stats(subject: Subject, module: Any, tight: Batch, moved: dict[str, Batch]) -> None:
    """What parts change by after a step of training."""
    training = module.training
    module.train()
    want = subject.call(module, tight).stats
    for where, batch in moved.items() if want else ():
        got = subject.call(module, batch).stats
        for name, value in want.items():
            agree(got[name], value, f"with more padding {where} the stats {name!r} are others")
    module.train(training)


def _told(length: int, subject: Trained, model: Any) -> None:
    lengths = [length, max(2, length - 3), max(2, length // 2)]
    columns = length + 3
    lefts = {"right": [0] * ROWS, "left": [columns - n for n in lengths]}
    drawn = subject.ragged(length)
    want = _says(model, drawn.over(lambda t: placed(t, positions(lengths, [0] * ROWS, length), -1)).x)
    for where, left in lefts.items():
        pos = positions(lengths, left, columns)
        padded = drawn.over(lambda t, pos=pos: placed(t, pos, -1))  # type: ignore[misc]
        got = _says(model, padded.x)
        for name, value in want.items():
            agree(got[name], value, f"rows of {lengths} tokens give another {name} with more padding {where}")


def _says(model: Any, x: Any) -> dict[str, Tensor]:
    loss, judged = model(x), model.judge(x)
    totals = {f"{name!r}, {n}": one for name, pair in judged.totals.items() for n, one in enumerate(pair)}
    return {"loss": loss.total, "count of targets": torch.as_tensor(loss.count), **totals}


def _spoiled(batch: Batch) -> Batch:
    """Other garbage at padding; for a model of tokens padding is -1 itself."""
    if not batch.x.is_floating_point():
        return batch
    return dataclasses.replace(batch, x=torch.where(batch.real[..., None], batch.x, -3 * batch.x.flip(-1) - 1))


def _resourced(subject: Subject, batch: Batch, seed: int) -> Batch:
    """The same source, moved against its padding, with other garbage there; not against x where it is as long."""
    if batch.source is None:
        return batch
    if subject.source == "equal":
        lengths = batch.real.sum(1).tolist()
        pos = positions(lengths, [batch.size[1] - n for n in lengths], batch.size[1])
    else:
        pos = positions([SOURCE - n % 3 for n in range(3)], [2 - n % 2 for n in range(3)], SOURCE + 2)
    return dataclasses.replace(batch, source=subject.filled(pos, seed + 100, 1), source_pos=pos)


def _values(subject: Subject, module: Any, batch: Batch) -> dict[str, list[Tensor] | Tensor | None]:
    """y, aux and the gradient of x at real positions, row by row; penalties; the gradients of parameters."""
    out, leaf = subject.traced(module, batch)
    found: dict[str, Any] = {"y": real(out.y, batch)}
    found |= {f"aux {name!r}": real(value, batch) if value.dim() else value for name, value in out.aux.items()}
    by_name = gradients(loss(out, batch), module, x=leaf)
    x = by_name.pop("x")
    if x is not None:
        found["the gradient of x"] = real(x, batch)
        if not subject.vocab and not bool((x[~batch.real].abs() <= ROUNDING * x[batch.real].abs().max()).all()):
            raise Broken("a loss on real positions has a gradient at padding of x, so what stands there mattered")
    return found | {f"the gradient of {name}": g for name, g in by_name.items()}


def _compare(sentence: str, want: dict, got: dict) -> None:
    agree_names(got, want, sentence)
    for name, value in want.items():
        what = f"{sentence} ({name})"
        if isinstance(value, list):
            for n, (mine, theirs) in enumerate(zip(got[name], value, strict=True)):
                agree(mine, theirs, f"{what}, row {n}")
        elif value is None or got[name] is None:
            if value is not got[name]:
                raise Broken(f"{what}: there is a gradient in one case and none in the other")
        else:
            agree(got[name], value, what)
