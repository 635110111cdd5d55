"""Law any_length: rows may have any number of tokens, not only multiples of some number."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from kinformer.laws.support.findings import Broken, findings
from kinformer.laws.support.input_batch import InputBatch, positions
from kinformer.laws.support.subject import EFFORT, Subject, TrainingSubject

SAYS = "rows may have any number of tokens"
OVER = ("layer", "model")
LENGTHS = (1, 2, 3, 7, 31) if EFFORT > 1 else (1, 2, 31)


def judge(subject: Subject | TrainingSubject) -> Iterator[str]:
    """Call a layer or model with rows and sources of several lengths, and yield each failure.

    subject: a layer or model with the part to test.

    Outputs and gradients must be finite, and outputs must have the length of x. A row without tokens must work, or be
    refused with an error of one line.
    """
    module = subject.build()
    if isinstance(subject, TrainingSubject):
        for length in LENGTHS[1:]:
            yield from findings(_check_training, subject, module, length)
        return
    for _ in subject.modes(module):
        for length in LENGTHS:
            yield from findings(_check_call, subject, module, subject.batch([length] * 2), f"{length} tokens")
            if subject.source == "other":
                pos = positions([length] * 2, [0, 0], length)
                batch = dataclasses.replace(subject.batch([3] * 2), source=subject.fill_rows(pos, 0), source_pos=pos)
                yield from findings(_check_call, subject, module, batch, f"a source of {length} tokens")
        yield from findings(_check_no_tokens, subject, module)


def _check_call(subject: Subject, module: Any, batch: InputBatch, case: str) -> None:
    for state in subject.states(module, 2, batch.size[1]):
        try:
            out, leaf = subject.call_traced(module, batch, state)
            (gradient,) = torch.autograd.grad(out.y.square().sum(), leaf, allow_unused=True)
        except Exception as error:
            raise Broken(f"a call with {case} fails: {type(error).__name__}: {error}") from error
        if tuple(out.y.shape[:2]) != batch.size:
            raise Broken(f"a call with {case} gives an output of shape {tuple(out.y.shape)}")
        if not (out.y.isfinite().all() and (gradient is None or gradient.isfinite().all())):
            raise Broken(f"a call with {case} gives NaN or infinite outputs or gradients")


def _check_no_tokens(subject: Subject, module: Any) -> None:
    for state in subject.states(module, 2, 4):
        try:
            out = subject.call(module, subject.batch([0] * 2, columns=0), state)
        except ValueError as error:
            if "\n" in str(error):
                raise Broken(f"a row without tokens is refused with an error of more than one line: {error}") from error
            continue
        except Exception as error:
            raise Broken(
                f"a row without tokens raises {type(error).__name__}: {error}; return an empty row, or raise a "
                "ValueError of one line"
            ) from error
        if tuple(out.y.shape[:2]) != (2, 0):
            raise Broken(f"a row without tokens gives an output of shape {tuple(out.y.shape)}")


def _check_training(subject: TrainingSubject, module: Any, length: int) -> None:
    try:
        loss = subject.call(module, subject.ragged(length)).y
        parameters = [p for p in module.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss.sum(), parameters, allow_unused=True)
    except Exception as error:
        raise Broken(f"the loss of rows of {length} tokens fails: {type(error).__name__}: {error}") from error
    if not loss.isfinite().all() or not all(g.isfinite().all() for g in gradients if g is not None):
        raise Broken(f"the loss of rows of {length} tokens, or one of its gradients, is NaN or infinite")
