"""Law padding: padding on the left or right, with any content, changes nothing at real positions."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kinformer.laws.support.comparisons import agree, agree_names, agree_states
from kinformer.laws.support.dependences import ROUNDING, gradients, loss, real_values
from kinformer.laws.support.findings import Broken, Unjudged, find_smallest
from kinformer.laws.support.input_batch import InputBatch, place_content, positions
from kinformer.laws.support.subject import EFFORT, ROWS, SOURCE, Subject, TrainingSubject

SAYS = "padding on the left or right changes no value and no gradient"
OVER = ("layer", "model")
LENGTH = 13
WILD = math.nan, math.inf, -math.inf, 1e300, -1e300


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Compare rows with different places and contents of the padding, and yield each difference.

    subject: a layer or model with the part to test.

    Padding is on the right, on the left or on both sides, and may hold NaN and infinite numbers. For a layer, the law
    compares outputs, further results (`Out.aux`), decoding states, and gradients of a loss on real positions. For the
    loss of a model of tokens, it compares loss, counts and metrics; padding is the token -1. Other batches, such as
    sets, mark padding by -1 in a tensor of integers. For these, it compares loss and gradients.
    """
    module = subject.build()
    if isinstance(subject, TrainingSubject):
        if hasattr(module, "logits") or _labels_rows(subject.ragged(2).x):
            yield from find_smallest(_check_tokens, LENGTH, subject, module)
        elif _marks(subject.ragged(2).x) is not None:
            yield from find_smallest(_check_marks, LENGTH, subject, module)
        else:
            raise Unjudged("the model's batches have no tokens or marks that could show padding by -1")
        return
    for _ in subject.modes(module):
        for seed in range(EFFORT):
            yield from find_smallest(_check_moves, LENGTH + 5 * seed, subject, module, seed)


def _check_moves(length: int, subject: Subject, module: Any, seed: int) -> None:
    lengths = [length, max(1, length - 3), max(1, length // 2)]
    columns = length + 4
    ends = [columns - n for n in lengths]
    tight = subject.batch(lengths, columns=length, seed=seed)
    padded = {
        "right": subject.batch(lengths, columns=columns, seed=seed),
        "left": subject.batch(lengths, ends, columns, seed=seed),
        "on both sides": subject.batch(lengths, [n // 2 for n in ends], columns, seed=seed),
    }
    want = _values(subject, module, tight)
    for where, batch in padded.items():
        sentence = f"rows of {lengths} tokens give a different result with more padding {where}"
        _compare(sentence, want, _values(subject, module, batch))
    spoiled, resourced = _spoil_padding(tight), _move_source(subject, tight, seed)
    _compare("NaN or infinite numbers at padding change the result", want, _values(subject, module, spoiled))
    if resourced is not tight:
        _compare("numbers at padding of the source change the result", want, _values(subject, module, resourced))
    _stats(subject, module, tight, padded)
    if subject.no_state(module) is None:
        states = [
            subject.call(module, batch, subject.start(module, 3, length)).state
            for batch in (tight, *padded.values(), spoiled)
        ]
        for where, state in zip((*padded, "that is NaN"), states[1:], strict=True):
            agree_states(
                state, states[0], f"rows of {lengths} tokens leave a different state with more padding {where}"
            )


def _stats(subject: Subject, module: Any, tight: InputBatch, padded: dict[str, InputBatch]) -> None:
    """Compare the stats, which change parts after a step of training."""
    training = module.training
    module.train()
    want = subject.call(module, tight).stats
    for where, batch in padded.items() if want else ():
        actual = subject.call(module, batch).stats
        for name, value in want.items():
            agree(actual[name], value, f"with more padding {where}, the stats {name!r} are different")
    module.train(training)


def _check_tokens(length: int, subject: TrainingSubject, model: Any) -> None:
    lengths = [length, max(2, length - 3), max(2, length // 2)]
    columns = length + 3
    lefts = {"right": [0] * ROWS, "left": [columns - n for n in lengths]}
    sampled = subject.ragged(length)
    tight = positions(lengths, [0] * ROWS, length)
    expected = _evaluate(model, sampled.map_tensors(lambda t: place_content(t, tight, -1) if t.dim() > 1 else t).x)
    for where, left in lefts.items():
        pos = positions(lengths, left, columns)
        padded = sampled.map_tensors(lambda t, pos=pos: place_content(t, pos, -1) if t.dim() > 1 else t)  # type: ignore[misc]
        actual = _evaluate(model, padded.x)
        for name, value in expected.items():
            agree(actual[name], value, f"rows of {lengths} tokens give a different {name} with more padding {where}")


def _labels_rows(x: Any) -> bool:
    """True for a batch of rows of tokens [B T] with one label for each row [B]."""
    if not isinstance(x, tuple) or hasattr(x, "_fields"):
        return False
    return [t.dim() for t in x] == [2] + [1] * (len(x) - 1) and not any(t.is_floating_point() for t in x)


def _marks(x: Any) -> Tensor | None:
    """Return the marks [B T] of a batch of sets, steps or experience: integers, -1 at padding."""
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        named = dict(zip(x._fields, x, strict=True))
        marks = next((named[name] for name in ("marks", "times") if name in named), None)
        return marks if marks is not None else next((m for part in x if (m := _marks(part)) is not None), None)
    whole = (t for t in x if isinstance(t, Tensor) and t.dim() == 2 and t.dtype == torch.long)
    return next(whole, None) if isinstance(x, tuple) else None


def _check_marks(length: int, subject: TrainingSubject, model: Any) -> None:
    sampled = subject.ragged(length)
    marks = _marks(sampled.x)
    assert marks is not None
    rows, columns = marks.shape
    ends = columns - columns // 3 * torch.arange(rows)[:, None]
    padding = torch.arange(columns) >= ends
    values = []
    for wild in (False, True):

        def spoil_padding(t: Tensor, wild: bool = wild) -> Tensor:
            if t is marks or t.shape[:2] != padding.shape:
                return t.masked_fill(padding, -1) if t is marks else t
            mark = padding.view(*padding.shape, *[1] * (t.dim() - 2))
            return torch.where(mark, _wild_numbers(t) if wild else 0.0, t) if t.is_floating_point() else t

        loss = model(sampled.map_tensors(spoil_padding).x)
        by_name = gradients(loss.total, model)
        values.append({"loss": loss.total, **{f"the gradient of {name}": g for name, g in by_name.items()}})
    _compare("NaN or infinite numbers at padding change the result", *values)


def _evaluate(model: Any, x: Any) -> dict[str, Tensor]:
    loss, judged = model(x), model.judge(x)
    totals = {f"{name!r}, {n}": number for name, pair in judged.totals.items() for n, number in enumerate(pair)}
    return {"loss": loss.total, "count of targets": torch.as_tensor(loss.count), **totals}


def _spoil_padding(batch: InputBatch) -> InputBatch:
    """Write NaN, infinite and huge numbers at padding of x and source; token batches stay unchanged."""
    if not batch.x.is_floating_point():
        return batch
    x, source = batch.x, batch.source
    if source is not None and batch.source_pos is not None:
        source = torch.where((batch.source_pos >= 0)[..., None], source, _wild_numbers(source))
    x = torch.where(batch.is_real[..., None], x, _wild_numbers(x))
    return dataclasses.replace(batch, x=x, source=source, is_clean=False)


def _wild_numbers(like: Tensor) -> Tensor:
    """Return NaN, infinite and huge numbers, repeated to the shape of `like`."""
    return torch.tensor(WILD, dtype=like.dtype).repeat(like.numel() // len(WILD) + 1)[: like.numel()].view_as(like)


def _move_source(subject: Subject, batch: InputBatch, seed: int) -> InputBatch:
    """Return the batch with a moved source and other garbage; a source as long as x moves with x."""
    if batch.source is None:
        return batch
    if subject.source == "equal":
        lengths = batch.is_real.sum(1).tolist()
        pos = positions(lengths, [batch.size[1] - n for n in lengths], batch.size[1])
    else:
        pos = positions([SOURCE - n % 3 for n in range(3)], [2 - n % 2 for n in range(3)], SOURCE + 2)
    return dataclasses.replace(batch, source=subject.fill_rows(pos, seed + 100, 1), source_pos=pos)


def _values(subject: Subject, module: Any, batch: InputBatch) -> dict[str, list[Tensor] | Tensor | None]:
    """Return y, aux and the gradient of x at real positions, row by row, penalties and gradients."""
    out, leaf = subject.call_traced(module, batch)
    numbers: dict[str, Any] = {"y": real_values(out.y, batch)}
    numbers |= {f"aux {name!r}": real_values(value, batch) if value.dim() else value for name, value in out.aux.items()}
    by_name = gradients(loss(out, batch), module, x=leaf)
    x = by_name.pop("x")
    if x is not None:
        numbers["the gradient of x"] = real_values(x, batch)
        if not subject.vocab and not bool((x[~batch.is_real].abs() <= ROUNDING * x[batch.is_real].abs().max()).all()):
            raise Broken("a loss on real positions has a gradient at padding of x, so the result depends on padding")
    return numbers | {f"the gradient of {name}": g for name, g in by_name.items()}


def _compare(sentence: str, expected: dict, actual: dict) -> None:
    agree_names(actual, expected, sentence)
    for name, value in expected.items():
        case = f"{sentence} ({name})"
        if isinstance(value, list):
            for n, (mine, theirs) in enumerate(zip(actual[name], value, strict=True)):
                agree(mine, theirs, f"{case}, row {n}")
        elif value is None or actual[name] is None:
            if value is not actual[name]:
                raise Broken(f"{case}: only one of the two calls has a gradient")
        else:
            agree(actual[name], value, case)
