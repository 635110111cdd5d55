"""Law 2, no peeking: whatever comes after a position changes nothing up to it."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from kinformer.core.pattern import Pattern, narrowed
from kinformer.core.scores import allowed
from kinformer.core.state import leaves
from kinformer.laws.batch import Batch
from kinformer.laws.broken import Broken
from kinformer.laws.compare import agree, agree_names, smallest
from kinformer.laws.subject import GARBAGE, Subject
from kinformer.models.lm import LM
from kinformer.models.seq2seq import Seq2Seq

LENGTH = 11


def check(subject: Subject) -> None:
    """What can decode, by its own start, or learns to say what comes next, reads nothing ahead.

    A known pattern is read exactly.
    """
    module = subject.build()
    for training in subject.modes(module):
        decodes = subject.no_state(module) is None
        because = "start() says that it can decode" if decodes else "it learns to say what comes next"
        if decodes or isinstance(module, LM | Seq2Seq):
            for seed in range(subject.effort):
                smallest(_redraw, LENGTH + 4 * seed, subject, module, seed, training, because)
            smallest(_behind, LENGTH, subject, module, training, because)
        smallest(_differentiate, LENGTH, subject, module, decodes, training)


def _state(subject: Subject, module: Any, length: int, training: bool) -> Any:
    """Reading through a memory needs its state; everything else is watched without one."""
    return subject.start(module, 3, length) if training else None


def _redraw(length: int, subject: Subject, module: Any, seed: int, training: bool, because: str) -> None:
    batch = subject.ragged(length, seed=seed)
    before = subject.call(module, batch, _state(subject, module, length, training))
    for t in range(length - 1):
        for n, changed in enumerate(_changes(subject, batch, t, seed)):
            after = subject.call(module, changed, _state(subject, module, length, training))
            change = ("redrawing", "a large change of", "removing")[n]
            sentence = f"{because}, but {change} what follows column {t} of {length} changes it"
            pos = batch.pos[:, : t + 1]
            agree(after.y[:, : t + 1], before.y[:, : t + 1], sentence, pos=pos, bound=1e-12)
            agree_names(after.aux, before.aux, sentence)
            for name, value in before.aux.items():
                if value.dim():
                    what = f"{sentence} (aux {name!r})"
                    agree(after.aux[name][:, : t + 1], value[:, : t + 1], what, pos=pos, bound=1e-12)


def _changes(subject: Subject, batch: Batch, t: int, seed: int) -> list[Batch]:
    """The batch with everything after column t drawn again, drawn again and large, and turned to padding."""
    rows, columns = batch.size
    later = torch.arange(columns) > t
    drawn = subject.content(rows, columns, seed + 1000 + t)
    large = subject.content(rows, columns, seed + 2000 + t) * (1 if subject.vocab else int(GARBAGE))
    redrawn = [torch.where(_column(later & batch.real, x), x, batch.x) for x in (drawn, large)]
    gone = torch.where(_column(later & batch.real, batch.x), torch.full_like(batch.x, -1), batch.x)
    removed = dataclasses.replace(batch, x=gone, pos=torch.where(later, -1, batch.pos))
    return [*(dataclasses.replace(batch, x=x) for x in redrawn), removed]


def _column(mark: Tensor, x: Tensor) -> Tensor:
    return mark if x.dim() == 2 else mark[..., None]


def _behind(length: int, subject: Subject, module: Any, training: bool, because: str) -> None:
    batch = subject.ragged(length)
    ahead = _reads(subject, module, batch, training).triu(1) > 0
    if ahead.any():
        r, t, s = ahead.nonzero()[0].tolist()
        query, key = int(batch.pos[r, t]), int(batch.pos[r, s])
        raise Broken(f"reads position {key} at position {query} of {length}: {because}, so it may not read ahead")


def _differentiate(length: int, subject: Subject, module: Any, decodes: bool, training: bool) -> None:
    batch = subject.ragged(length)
    reads = _reads(subject, module, batch, training)
    if (reads[batch.real].sum(-1) == 0).all():
        raise Broken(f"its output depends on none of {length} tokens; finding no peeking there says nothing")
    if subject.pattern is not None:
        _exactly(subject.pattern, module.heads, batch, reads)
    elif decodes and length > 2 and not subject.source and _kept(subject, module):
        if not (reads.tril(-1) > 0).any():
            raise Broken(f"has a state, yet no position of {length} depends on an earlier one")


def _kept(subject: Subject, module: Any) -> bool:
    """Does its state hold anything beside the number of the next position?"""
    return any(name != "now" for name, _ in leaves(subject.start(module, 1, 4)))


def _reads(subject: Subject, module: Any, batch: Batch, training: bool) -> Tensor:
    """How much y and aux at column t depend on x at column s: a row, t, s."""
    rows, columns = batch.size
    out, leaf = subject.traced(module, batch, _state(subject, module, columns, training))
    watched = [(out.y * _noise(out.y)).sum(2), *(value.sin() for value in out.aux.values() if value.dim())]
    total = torch.stack([value for value in watched if value.requires_grad]).sum(0)
    found = []
    for t in range(columns):
        (gradient,) = torch.autograd.grad(total[:, t].sum(), leaf, retain_graph=True)
        found.append(gradient.abs().sum(-1))
    return torch.stack(found, 1) * batch.real[:, :, None]


def _noise(like: Tensor) -> Tensor:
    """Random weights of a shape, so that no sum cancels."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(7), dtype=like.dtype)


def _exactly(pattern: Pattern, heads: int, batch: Batch, reads: Tensor) -> None:
    may = allowed(narrowed(pattern, batch.only, batch.also), heads, batch.pos[:, None], batch.pos[:, None]).any(1)
    other = batch.real[:, :, None] & batch.real[:, None, :] & ~torch.eye(reads.shape[1], dtype=torch.bool)
    wrong = other & (may != (reads > 0))
    if wrong.any():
        r, t, s = wrong.nonzero()[0].tolist()
        what = "does not read" if may[r, t, s] else "reads"
        allows = "allows" if may[r, t, s] else "does not allow"
        query, key = int(batch.pos[r, t]), int(batch.pos[r, s])
        raise Broken(f"position {query} {what} position {key}, which its pattern {allows}: {pattern}")
