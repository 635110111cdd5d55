"""Law 12, any length: rows of any number of tokens, without a demand that they divide by something."""

import dataclasses
from typing import Any

import torch

from kinformer.laws.batch import Batch, positions
from kinformer.laws.broken import Broken
from kinformer.laws.subject import Subject

LENGTHS = (1, 2, 3, 7, 31)


def check(subject: Subject) -> None:
    """Values and gradients for each length, of x and of a source; no token at all works or is refused in one line."""
    module = subject.build()
    for training in subject.modes(module):
        for length in LENGTHS:
            _runs(subject, module, subject.batch([length] * 2), f"{length} tokens", training)
            if subject.source:
                batch = _with_source(subject, length)
                _runs(subject, module, batch, f"a source of {length} tokens", training)
        _nothing(subject, module, training)


def _with_source(subject: Subject, length: int) -> Batch:
    pos = positions([length] * 2, [0, 0], length)
    return dataclasses.replace(subject.batch([3] * 2), source=subject.sourced(pos, 0), source_pos=pos)


def _runs(subject: Subject, module: Any, batch: Batch, what: str, training: bool) -> None:
    stateful = subject.no_state(module) is None
    states = [subject.start(module, 2, batch.size[1])] if stateful else []
    for state in states if training else [None, *states]:
        try:
            out, leaf = subject.traced(module, batch, state)
            (gradient,) = torch.autograd.grad(out.y.square().sum(), leaf)
        except Exception as error:
            raise Broken(f"fails at {what}: {type(error).__name__}: {error}") from error
        if tuple(out.y.shape[:2]) != batch.size:
            raise Broken(f"{what} in, an output of shape {tuple(out.y.shape)} out")
        if not (out.y.isfinite().all() and gradient.isfinite().all()):
            raise Broken(f"values or gradients are not finite at {what}")


def _nothing(subject: Subject, module: Any, training: bool) -> None:
    batch = subject.batch([0] * 2, columns=0)
    stateful = subject.no_state(module) is None
    states = [subject.start(module, 2, 4)] if stateful else []
    for state in states if training else [None, *states]:
        try:
            out = subject.call(module, batch, state)
        except ValueError as error:
            if "\n" in str(error):
                raise Broken(f"a row of no tokens is refused in more than one line: {error}") from error
            continue
        except Exception as error:
            raise Broken(f"a row of no tokens gives {type(error).__name__}: {error}; return it or refuse it") from error
        if tuple(out.y.shape[:2]) != (2, 0):
            raise Broken(f"no tokens in, an output of shape {tuple(out.y.shape)} out")
