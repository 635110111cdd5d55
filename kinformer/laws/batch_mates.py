"""Law batch_mates: a row's result does not depend on which other rows are in the batch."""

from collections.abc import Iterator
from typing import Any

import torch

from kinformer.core.state import select
from kinformer.laws.support.compare import agree, agree_out, agree_states
from kinformer.laws.support.finding import smallest
from kinformer.laws.support.subject import ROWS, Subject, Trained

SAYS = "a row does not depend on the others of its batch"
OVER = ("layer", "model")
LENGTH = 13


def judge(subject: Subject | Trained) -> Iterator[str]:
    """Each row alone, and twice beside itself, in eval and train mode, with and without a state.

    What a model measures over a batch is the sum of what it measures row by row.
    """
    module = subject.build()
    if isinstance(subject, Trained):
        yield from smallest(_measured, LENGTH, subject, module)
        return
    for training in (False, True):
        module.train(training)
        for decodes in (False,) if subject.no_state(module) is not None else (False, True):
            yield from smallest(_alone, LENGTH, subject, module, decodes)


def _alone(length: int, subject: Subject, module: Any, decodes: bool) -> None:
    batch = subject.ragged(length)
    out = subject.call(module, batch, subject.start(module, ROWS, length) if decodes else None)
    for rows in ([0], [1], [2], [2, 2, 0]):
        mine = batch.rows(rows)
        own = subject.call(module, mine, subject.start(module, len(rows), length) if decodes else None)
        whole = out._replace(y=out.y[rows], aux={key: v[rows] if v.dim() else v for key, v in out.aux.items()})
        sentence = f"rows {rows} of {length} tokens give another result in a batch of three than by themselves"
        agree_out(own, whole, sentence, mine.pos, bound=1e-12)
        if decodes:
            agree_states(own.state, select(out.state, torch.tensor(rows)), sentence)


def _measured(length: int, subject: Trained, model: Any) -> None:
    batch = subject.ragged(length)
    whole = model.judge(batch.x).totals
    alone = [model.judge(batch.rows([n]).x).totals for n in range(ROWS)]
    for name, (total, count) in whole.items():
        sentence = f"{name!r} of three rows of {length} is not the sum of theirs"
        agree(torch.stack([one[name][0] for one in alone]).sum(), total, sentence)
        agree(torch.stack([one[name][1] for one in alone]).sum(), count, f"{sentence} (its count)")
