"""Synthetic tasks as data: `task=recall,pairs=16`; rows are drawn when needed, and a token is a byte.

Choose it to find out which abilities, such as recall, a model has. Its score on a text does not show them separately.
The metric is accuracy. Text models, masked models and sequence-to-sequence models can be trained on a task.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy
from torch import Tensor

from kinformer.checkpoint.atomic_files import digest
from kinformer.core.batch import TokenBatch
from kinformer.core.checks import check_at_least
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import modules
from kinformer.core.keywords import parse_keywords
from kinformer.core.model import ACCURACY, Metric, Model
from kinformer.core.module_import import load_user_module
from kinformer.core.quote import quote
from kinformer.core.task import Task, TaskRow
from kinformer.decoding.pad_sequences import pad_sequences
from kinformer.decoding.prompts import Prompts
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data

FORM, SERVES = "task=NAME,size=8", ("text", "masked", "pairs")
SPLITS = ("train", "valid", "test")
HELD = 0.1  # share of all rows in valid, and again in test
MEASURED, MOST = 32, 512  # rows of a validation batch, and of a validation
PROMPTED = 1  # seed of the rows for prompts; validation and test use seed 0
TRIED = 10_000  # draws after which a split counts as empty


@dataclass(frozen=True)
class TaskSplit:
    """An endless source of random rows of one split of a task.

    task: the task.
    split: "train", "valid" or "test".
    """

    task: Task
    split: str
    hashed_as: ClassVar[str] = "Lot"  # its name in fingerprints of saved runs

    def __len__(self) -> int:
        """Return the maximum number of rows that are measured."""
        return MOST

    def rows(self, count: int, seed: int = 0, step: int = 0) -> list[TaskRow]:
        """Draw random rows; the same seed and step give the same rows.

        A smaller `count` gives the first of them.

        count: number of rows.
        seed, step: seed and step of the draw.

        Errors: ValueError if no row of this split is found in many draws, because the task has too few rows.
        """
        rng = numpy.random.default_rng((SPLITS.index(self.split), seed, step))
        return [self._row(rng) for _ in range(count)]

    def _row(self, rng: numpy.random.Generator) -> TaskRow:
        for _ in range(TRIED):
            if split_of((row := self.task.row(rng)).question) == self.split:
                return row
        raise ValueError(
            f"{self.task} has too few rows to split into {', '.join(SPLITS)}: no row of {self.split} in {TRIED:,} "
            "draws; give it larger sizes"
        )


@dataclass(frozen=True, eq=False)
class TaskData(Data):
    """Endless rows of a task; train, valid and test never share a row.

    The SHA-256 of a question assigns it to a split. Each split draws questions until one belongs to it. The sizes of
    the task set the length of rows, so the length of a training has no effect. A model begins each row with a new
    state.

    A causal model is trained only on the answers. For a masked model, exactly the answers are masked. A
    sequence-to-sequence model reads the question as source and writes the answers as target.

    name: the specification of the data, "task=...".
    task: the task.
    train, valid, test: endless sources of the rows of each split.
    """

    noun: ClassVar[str] = "a task"
    serves: ClassVar[tuple[str, ...]] = SERVES
    sized = False
    name: str
    task: Task
    train: TaskSplit
    valid: TaskSplit
    test: TaskSplit

    @classmethod
    def from_task(cls, name: str, task: Task) -> "TaskData":
        """Return the data of a task with all splits.

        name: the specification of the data.
        task: the task.
        """
        return cls(name, task, *(TaskSplit(task, split) for split in SPLITS))

    def metric(self, model: Model) -> Metric:
        return ACCURACY

    def longest_length(self, length: int) -> int:
        return self.task.width

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Batches:
        """Return random training batches, fixed by seed and step, and fixed validation rows."""

        def draw_batch(step: int) -> Any:
            return of_form(self.train.rows(batch, seed, step), model.reads)

        rows = self.valid.rows(self.count(limit))
        lots = (rows[first : first + MEASURED] for first in range(0, len(rows), MEASURED))
        return Batches(draw_batch, [of_form(lot, model.reads) for lot in lots])

    def count(self, limit: int) -> int:
        """Return the number of rows, with at most `limit` bytes in total, on which a model is measured."""
        return max(1, min(MOST, limit // self.task.width))

    def levels(self, model: Model, split: str, length: int, limit: int) -> dict[str, float]:
        return {"guessing": self.task.chance_accuracy}

    def prompts(self, model: Model, split: str, count: int, length: int, tokens: int) -> Prompts:
        """Return rows without their last answer; for sequence-to-sequence models, questions as sources."""
        rows = getattr(self, split).rows(check_at_least("texts", count, 1), PROMPTED)
        if model.reads == "pairs":
            answers = [row.answer for row in rows]
            return Prompts([b""] * count, answers, max(map(len, answers)), [row.question for row in rows], True)
        answers = [row.pieces[-1][1] for row in rows]
        begins = [row.text[: len(row.text) - len(answer)] for row, answer in zip(rows, answers, strict=True)]
        return Prompts(begins, answers, max(map(len, answers)), by_place=True)

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        return f"{self.count(limit):,} rows of {split} (guessing scores {self.task.chance_accuracy:.3f})"


def split_of(question: bytes) -> str:
    """Return the split of a question by its SHA-256: "train", "valid" or "test"."""
    place = int.from_bytes(digest(question)[:8]) / 2**64
    return "valid" if place < HELD else "test" if place < 2 * HELD else "train"


def of_form(rows: Sequence[TaskRow], reads: str) -> TokenBatch | tuple[Tensor, TokenBatch]:
    """Return rows as a batch for a model: a row with its answers marked, or a source and a target.

    rows: rows of a task.
    reads: the kind of input of the model; "pairs" gives a source and a target.
    """
    if reads != "pairs":
        return TokenBatch(
            pad_sequences([row.text for row in rows]), pad_sequences([row.answer_mask for row in rows], 0).bool()
        )
    target = pad_sequences([row.answer for row in rows])
    return pad_sequences([row.question for row in rows]), TokenBatch(target, target >= 0)


def read(where: str, **sizes: str) -> TaskData:
    """Read a task of the folder `tasks`, or of a user's FILE.py:Name.

    where: name of the task, or FILE.py:Name.
    sizes: sizes of the task, such as pairs=16.

    Errors: ValueError, in one line, for an unknown name or size, with the nearest name, and for sizes that the task
    refuses.
    """
    kind = _own_task_kind(where) if ".py:" in where else _task_kind(where)
    try:
        task = kind(**parse_keywords(kind, [f"{name}={value}" for name, value in sizes.items()]))
    except TypeError as error:
        raise ValueError(str(error)) from error
    return TaskData.from_task(",".join([f"task={where}", *(f"{name}={value}" for name, value in sizes.items())]), task)


def _task_kind(name: str) -> type[Task]:
    files = modules("tasks")
    if name not in files:
        raise ValueError(f"there is no task {quote(name)}{suggest_names(name, files)}")
    kinds = [
        value for value in vars(files[name]).values() if _is_task(value) and value.__module__ == files[name].__name__
    ]
    if not kinds:
        raise ValueError(f"the file of the task {quote(name)} defines no subclass of Task")
    return kinds[-1]


def _own_task_kind(where: str) -> type[Task]:
    path, name = where.rsplit(":", 1)
    try:
        kinds = {value.__name__: value for value in vars(load_user_module(path)).values() if _is_task(value)}
    except (LookupError, ImportError) as error:
        raise ValueError(str(error)) from error
    if name not in kinds:
        raise ValueError(f"{path} has no task {quote(name)}{suggest_names(name, kinds)}")
    return kinds[name]


def _is_task(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Task) and value is not Task
