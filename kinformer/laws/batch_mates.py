"""Law batch_mates: a row's result does not depend on which other rows are in the batch."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kinformer.core.state import select
from kinformer.laws.support.comparisons import agree, agree_out, agree_states
from kinformer.laws.support.findings import find_smallest
from kinformer.laws.support.subject import ROWS, Subject, TrainingSubject

SAYS = "the result for a row does not depend on the other rows in its batch"
OVER = ("layer", "model")
LENGTH = 13


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Compare the result of each row of a batch with the result of a batch that has only this row.

    subject: a layer or model with the part to test.

    A batch with a repeated row is compared too. The test yields a sentence for each difference. It uses eval and train
    mode, with and without a decoding state. The measures of a model over a batch must be the sums of the measures of
    its rows. The same holds for its loss times its number of targets (`Loss.count`), and for the sums that a part
    collects for its `after_step` (`Out.stats`).
    """
    module = subject.build()
    if isinstance(subject, TrainingSubject):
        yield from find_smallest(_check_totals, LENGTH, subject, module)
        return
    for training in (False, True):
        module.train(training)
        for decodes in (False,) if subject.no_state(module) is not None else (False, True):
            yield from find_smallest(_check_alone, LENGTH, subject, module, decodes)


def _check_alone(length: int, subject: Subject, module: Any, decodes: bool) -> None:
    batch = subject.ragged(length)
    out = subject.call(module, batch, subject.start(module, ROWS, length) if decodes else None)
    stats: list[dict[str, Tensor]] = []
    for rows in ([0], [1], [2], [2, 2, 0]):
        mine = batch.rows(rows)
        out_alone = subject.call(module, mine, subject.start(module, len(rows), length) if decodes else None)
        whole = out._replace(y=out.y[rows], aux={key: v[rows] if v.dim() else v for key, v in out.aux.items()})
        stats += [dict(out_alone.stats)] if len(rows) == 1 else []
        sentence = f"rows {rows} of {length} tokens give a different result in a batch of three than alone"
        agree_out(out_alone, whole, sentence, mine.pos, bound=1e-12)
        if decodes:
            agree_states(out_alone.state, select(out.state, torch.tensor(rows)), sentence)
    for name, value in out.stats.items():
        sentence = f"the stats {name!r} of three rows of {length} tokens differ from the sum over the single rows"
        agree(torch.stack([row_stats[name] for row_stats in stats]).sum(0), value, sentence)


def _check_totals(length: int, subject: TrainingSubject, model: Any) -> None:
    batch = subject.ragged(length)
    whole = model.judge(batch.x).totals
    alone = [model.judge(batch.rows([n]).x).totals for n in range(ROWS)]
    for name, (total, count) in whole.items():
        sentence = f"{name!r} of three rows of {length} tokens differs from the sum over the single rows"
        agree(torch.stack([row[name][0] for row in alone]).sum(), total, sentence)
        agree(torch.stack([row[name][1] for row in alone]).sum(), count, f"{sentence} (its count)")
    losses, loss = [model(batch.rows([n]).x) for n in range(ROWS)], model(batch.x)
    sentence = f"of three rows of {length} tokens differs from the sum over the single rows"
    agree(torch.as_tensor(sum(int(row.count) for row in losses)), torch.as_tensor(loss.count), f"the count {sentence}")
    for name in loss.parts.keys() & {"nll"}:
        whole_nll = loss.parts[name] * loss.count
        agree(torch.stack([row.parts[name] * row.count for row in losses]).sum(), whole_nll, f"{name!r} {sentence}")
