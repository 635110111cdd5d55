"""What a member of a comparison is asked: to go on with a text, to fill in what is hidden, or to answer."""

from typing import Any, NamedTuple

import torch

from kinformer.cli.support.training import Job
from kinformer.cli.support.writing import write
from kinformer.decoding.filling import fill_blanks
from kinformer.decoding.spelling import tokenizer_of_model
from kinformer.lab.data.batches import device_of
from kinformer.lab.data.pairs import PairData
from kinformer.lab.data.task import TaskData

PROMPT, WRITTEN, TEMPERATURE = 64, 256, 0.8
EACH = 6  # tokens of a text of which one is hidden


class Asked(NamedTuple):
    """A prompt, and for what reads one a source; how many bytes are written, how boldly, and what is right, if any."""

    prompt: bytes
    source: bytes | None
    size: int
    temperature: float
    answer: bytes | None = None


class Said(NamedTuple):
    """What a member was given, what it made of it, what is right, if any; and the milliseconds of a written token."""

    prompt: bytes
    sample: bytes
    answer: bytes | None = None
    milliseconds: float | None = None


def said(model: Any, job: Job) -> Said:
    """What a member says when it is asked, drawn by the seed of its training."""
    if model.reads == "masked":
        return _filled(model, job)
    if not model.predicts_next or model.reads == "images":
        return Said(b"", b"")
    clocked, one = timed(model, job), asked(model, job)
    _written(model, clocked._replace(size=min(4, clocked.size), temperature=0.0), job)
    sample, milliseconds = _written(model, clocked, job)
    if one != clocked:
        sample, _ = _written(model, one, job)
    return Said(one.source or one.prompt, sample, one.answer, milliseconds)


def asked(model: Any, job: Job) -> Asked:
    """What is shown of a member that writes: how it goes on with valid, or answers its first row."""
    if isinstance(job.data, PairData):
        source, target = (
            tokenizer_of_model(job.data).decode(side) for side in job.data.within(job.settings.length).valid[0]
        )
        return Asked(b"", source, len(target), 0.0, target)
    if not isinstance(job.data, TaskData):
        first, count = lengths(model)
        return Asked(tokenizer_of_model(job.text).decode(job.text.valid[:first].tolist()), None, count, TEMPERATURE)
    (row,) = job.data.valid.rows(1)
    if model.reads == "pairs":
        return Asked(b"", row.question, len(row.answer), 0.0, row.answer)
    question, answer = row.pieces[0]
    return Asked(question, None, len(answer), 0.0, answer)


def timed(model: Any, job: Job) -> Asked:
    """What it is timed at: the same, but where an answer is a token or two, the second half of a row."""
    one = asked(model, job)
    if one.answer is None or one.source is not None:
        return one
    assert isinstance(job.data, TaskData)
    (row,) = job.data.valid.rows(1)
    half = max(1, len(row.text) // 2)
    return Asked(row.text[:half], None, len(row.text) - half, TEMPERATURE)


def lengths(model: Any) -> tuple[int, int]:
    """How many bytes of valid a member goes on from, and how many it writes: no further than a row of its training.

    One that carries its state from batch to batch has no such end.
    """
    trained = model.trained_length
    if trained is None or model.lanes or trained >= PROMPT + WRITTEN:
        return PROMPT, WRITTEN
    first = max(1, min(PROMPT, trained // 2))
    return first, max(1, trained - first)


def _written(model: Any, one: Asked, job: Job) -> tuple[bytes, float]:
    return write(model, one.prompt, one.size, source=one.source, temperature=one.temperature, seed=job.settings.seed)


def _filled(model: Any, job: Job) -> Said:
    """The first of valid with every sixth token hidden, or the first row of a task without its answers, filled in."""
    spelled = tokenizer_of_model(model)
    if isinstance(job.data, TaskData):
        (row,) = job.data.valid.rows(1)
        hidden = torch.tensor([model.mask if hide else byte for byte, hide in zip(row.text, row.scored, strict=True)])
        found = fill_blanks(model, hidden.to(device_of(model))).cpu()[torch.tensor(row.scored)]
        return Said(row.question, spelled.decode(found.tolist()), row.answer)
    hidden = job.text.valid[: min(PROMPT, model.trained_length or PROMPT)].to(torch.long, copy=True)
    hidden[EACH - 1 :: EACH] = model.mask
    prompt = b"".join(b"_" if token == model.mask else spelled.decode([token]) for token in hidden.tolist())
    return Said(prompt, spelled.decode(fill_blanks(model, hidden.to(device_of(model))).tolist()))
