"""Text samples of the models of a comparison: a continued text, filled-in gaps, or an answer."""

from typing import Any, NamedTuple

import torch

from kinformer.decoding.byte_tokenizer import tokenizer_of_model
from kinformer.decoding.fill_blanks import fill_blanks
from kinformer.lab.data.batches import device_of
from kinformer.lab.data.data import Data
from kinformer.lab.data.pairs import PairData
from kinformer.lab.data.task import TaskData
from kinformer.lab.data.text import TextData
from kinformer.lab.text_continuation import WritingSettings, write_all
from kinformer.lab.train.settings import Settings

PROMPT, WRITTEN = 64, 256
EACH = 6  # every sixth token of a text is masked


class WritingTask(NamedTuple):
    """A task for a model of a comparison: a text to continue, or a source to answer.

    prompt: the prompt.
    source: the source for a model of pairs (source and target), otherwise None.
    size: largest number of tokens to write.
    temperature: temperature of sampling; None for the defaults of `generate`, which texts have.
    answer: the right answer, if there is one.
    """

    prompt: bytes
    source: bytes | None
    size: int
    temperature: float | None
    answer: bytes | None = None


class MemberSample(NamedTuple):
    """The text that a model of a comparison has written for a `WritingTask`, or by filling in gaps.

    prompt: the prompt or the source.
    sample: the text that the model wrote.
    answer: the right answer, if there is one.
    milliseconds: time per written token; None if it was not measured.
    """

    prompt: bytes
    sample: bytes
    answer: bytes | None = None
    milliseconds: float | None = None


def draw_sample(model: Any, data: Data, settings: Settings) -> MemberSample:
    """Let a trained model write a sample text, with the seed of its training.

    A masked model fills in gaps. A model that cannot write text gives an empty sample.

    model: the model.
    data: the data of the comparison.
    settings: settings of the training.
    """
    if model.reads == "masked":
        return _fill(model, data)
    if not model.predicts_next or model.reads == "images":
        return MemberSample(b"", b"")
    seed = settings.seed
    clocked, task = timed_task(model, data, settings), displayed_task(model, data, settings)
    _write(model, clocked._replace(size=min(4, clocked.size), temperature=0.0), seed)
    sample, milliseconds = _write(model, clocked, seed)
    if task != clocked:
        sample, _ = _write(model, task, seed)
    return MemberSample(task.source or task.prompt, sample, task.answer, milliseconds)


def displayed_task(model: Any, data: Data, settings: Settings) -> WritingTask:
    """Return the task for the sample that a comparison shows.

    The model continues the beginning of the validation text, or answers the first row of validation data.

    model: the model.
    data: the data of the comparison.
    settings: settings of the training.
    """
    if isinstance(data, PairData):
        source, target = (tokenizer_of_model(data).decode(side) for side in data.up_to_length(settings.length).valid[0])
        return WritingTask(b"", source, len(target), 0.0, target)
    if not isinstance(data, TaskData):
        assert isinstance(data, TextData)
        first, count = prompt_and_written(model)
        return WritingTask(tokenizer_of_model(data).decode(data.valid[:first].tolist()), None, count, None)
    (row,) = data.valid.rows(1)
    if model.reads == "pairs":
        return WritingTask(b"", row.question, len(row.answer), 0.0, row.answer)
    question, answer = row.pieces[0]
    return WritingTask(question, None, len(answer), 0.0, answer)


def timed_task(model: Any, data: Data, settings: Settings) -> WritingTask:
    """Return the task that measures the time per written token.

    It is the shown task; for tasks with short answers, the model writes the second half of a row instead.

    model: the model.
    data: the data of the comparison.
    settings: settings of the training.
    """
    task = displayed_task(model, data, settings)
    if task.answer is None or task.source is not None:
        return task
    assert isinstance(data, TaskData)
    (row,) = data.valid.rows(1)
    half = max(1, len(row.text) // 2)
    return WritingTask(row.text[:half], None, len(row.text) - half, None)


def prompt_and_written(model: Any) -> tuple[int, int]:
    """Return how many tokens a sample takes as its prompt, and how many the model writes.

    Together they are at most the length of a training row, except for a model that is trained on lanes and carries its
    state from batch to batch.

    model: the model.
    """
    trained = model.trained_length
    if trained is None or model.lanes or trained >= PROMPT + WRITTEN:
        return PROMPT, WRITTEN
    first = max(1, min(PROMPT, trained // 2))
    return first, max(1, trained - first)


def _write(model: Any, task: WritingTask, seed: int) -> tuple[bytes, float]:
    """Return the text that a model writes for a task, and the milliseconds per token."""
    settings, sources = WritingSettings(task.temperature, seed=seed), None if task.source is None else [task.source]
    (continuation,), milliseconds = write_all(model, [task.prompt], task.size, settings, sources=sources)
    return continuation.text, milliseconds


def _fill(model: Any, data: Data) -> MemberSample:
    """Fill in every sixth token of the validation text, or the answers in the first row of a task."""
    spelled = tokenizer_of_model(model)
    if isinstance(data, TaskData):
        (row,) = data.valid.rows(1)
        hidden = torch.tensor(
            [model.mask if hide else byte for byte, hide in zip(row.text, row.answer_mask, strict=True)]
        )
        filled_in = fill_blanks(model, hidden.to(device_of(model))).cpu()[torch.tensor(row.answer_mask)]
        return MemberSample(row.question, spelled.decode(filled_in.tolist()), row.answer)
    assert isinstance(data, TextData)
    hidden = data.valid[: min(PROMPT, model.trained_length or PROMPT)].to(torch.long, copy=True)
    hidden[EACH - 1 :: EACH] = model.mask
    prompt = b"".join(b"_" if token == model.mask else spelled.decode([token]) for token in hidden.tolist())
    return MemberSample(prompt, spelled.decode(fill_blanks(model, hidden.to(device_of(model))).tolist()))
