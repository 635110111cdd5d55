"""Law 6, batch mates: a row's result does not depend on which other rows are in the batch."""

from typing import Any

import torch

from kinformer.core.state import select
from kinformer.laws.compare import agree_out, agree_states, smallest
from kinformer.laws.subject import Subject

LENGTH = 13


def check(subject: Subject) -> None:
    """Each row alone, and twice beside itself, in eval and train mode, with and without a state."""
    module = subject.build()
    for training in (False, True):
        module.train(training)
        decodes = subject.no_state(module) is None
        smallest(_alone, LENGTH, subject, module, decodes)


def _alone(length: int, subject: Subject, module: Any, decodes: bool) -> None:
    batch = subject.ragged(length)
    out = subject.call(module, batch, subject.start(module, 3, length) if decodes else None)
    for rows in ([0], [1], [2], [2, 2, 0]):
        mine = batch.rows(rows)
        own = subject.call(module, mine, subject.start(module, len(rows), length) if decodes else None)
        whole = out._replace(y=out.y[rows], aux={key: v[rows] if v.dim() else v for key, v in out.aux.items()})
        sentence = f"rows {rows} of {length} tokens give another result in a batch of three than by themselves"
        agree_out(own, whole, sentence, mine.pos, bound=1e-12)
        if decodes:
            agree_states(own.state, select(out.state, torch.tensor(rows)), sentence)
