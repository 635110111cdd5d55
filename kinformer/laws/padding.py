"""Law 3, padding: positions of -1, left or right, change nothing elsewhere, whatever stands there."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from kinformer.core.layer import Out
from kinformer.laws.batch import SOURCE, Batch, positions
from kinformer.laws.broken import Broken
from kinformer.laws.compare import agree, agree_names, agree_states, smallest
from kinformer.laws.subject import Subject

LENGTH = 13


def check(subject: Subject) -> None:
    """Rows padded right, left, with other garbage: values, aux, states, gradients of a loss on real positions."""
    module = subject.build()
    for training in subject.modes(module):
        for seed in range(subject.effort):
            smallest(_move, LENGTH + 5 * seed, subject, module, seed, training)


def _move(length: int, subject: Subject, module: Any, seed: int, training: bool) -> None:
    lengths = [length, max(1, length - 3), max(1, length // 2)]
    columns = length + 4
    ends = [columns - n for n in lengths]
    tight = subject.batch(lengths, columns=length, seed=seed)
    moved = {
        "right": subject.batch(lengths, columns=columns, seed=seed),
        "left": subject.batch(lengths, ends, columns, seed=seed),
        "on both sides": subject.batch(lengths, [n // 2 for n in ends], columns, seed=seed),
    }
    want = _values(subject, module, tight, training)
    for where, batch in moved.items():
        sentence = f"rows of {lengths} tokens give another result with more padding {where}"
        _compare(sentence, want, _values(subject, module, batch, training))
    for where, batch in (("x", _spoiled(tight)), ("the source", _resourced(subject, tight, seed))):
        _compare(f"what stands at padding of {where} matters", want, _values(subject, module, batch, training))
    if subject.no_state(module) is None:
        states = [
            subject.call(module, batch, subject.start(module, 3, length)).state for batch in (tight, *moved.values())
        ]
        for where, state in zip(moved, states[1:], strict=True):
            agree_states(state, states[0], f"rows of {lengths} tokens leave another state with more padding {where}")


def _spoiled(batch: Batch) -> Batch:
    """Other garbage at padding; for a model of tokens padding is -1 itself."""
    if not batch.x.is_floating_point():
        return batch
    return dataclasses.replace(batch, x=torch.where(batch.real[..., None], batch.x, -3 * batch.x.flip(-1) - 1))


def _resourced(subject: Subject, batch: Batch, seed: int) -> Batch:
    """The same source, moved against its padding, with other garbage there."""
    if batch.source is None:
        return batch
    pos = positions([SOURCE - n % 3 for n in range(3)], [2 - n % 2 for n in range(3)], SOURCE + 2)
    return dataclasses.replace(batch, source=subject.sourced(pos, seed, 1), source_pos=pos)


def _values(subject: Subject, module: Any, batch: Batch, training: bool) -> dict[str, list[Tensor] | Tensor | None]:
    """y, aux and the gradient of x at real positions, row by row; penalties; the gradients of parameters."""
    state = subject.start(module, len(batch.x), batch.size[1]) if training else None
    out, leaf = subject.traced(module, batch, state)
    parameters = dict(module.named_parameters())
    gradients = torch.autograd.grad(_loss(out, batch), [leaf, *parameters.values()], allow_unused=True)
    found: dict[str, list[Tensor] | Tensor | None] = {"y": _real(out.y, batch)}
    found |= {f"aux {name!r}": _real(value, batch) if value.dim() else value for name, value in out.aux.items()}
    if gradients[0] is not None:
        found["the gradient of x"] = _real(gradients[0], batch)
        if not subject.vocab and gradients[0][~batch.real].any():
            raise Broken("a loss on real positions has a gradient at padding of x, so what stands there mattered")
    return found | {f"the gradient of {name}": g for name, g in zip(parameters, gradients[1:], strict=True)}


def _loss(out: Out, batch: Batch) -> Tensor:
    """A loss of values at real positions, the same however these are placed."""
    rows = _real(out.y, batch)
    weights = [torch.arange(1.0, row.numel() + 1).to(row).view_as(row).sin() for row in rows]
    terms = [(row * weight).sum() for row, weight in zip(rows, weights, strict=True)]
    for value in out.aux.values():
        terms += [piece.sum() for piece in (_real(value, batch) if value.dim() else [value])]
    return torch.stack(terms).sum()


def _real(value: Tensor, batch: Batch) -> list[Tensor]:
    return [row[mark] for row, mark in zip(value, batch.real, strict=True)]


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
