"""Tasks as data: `task=recall,pairs=16`, rows drawn as they are wanted, for members of any kind; a token is a byte.

Choose it to tell what a member can do where a text only tells how well it does. It is judged by accuracy.
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
from kinformer.core.task import Task, TaskRow
from kinformer.decoding.pad_sequences import pad_sequences
from kinformer.decoding.prompts import Prompts
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data

FORM, SERVES = "task=NAME,size=8", ("text", "masked", "pairs")
SPLITS = ("train", "valid", "test")
HELD = 0.1  # of all rows there are that are valid's, and so many that are test's
MEASURED, MOST = 32, 512  # rows of a batch that is measured, and of all of them
PROMPTED = 1  # the seed of rows to write on from; valid and test are measured on those of 0
TRIED = 10_000  # draws in which a row of a split must come


@dataclass(frozen=True)
class TaskSplit:
    """The rows of one split of a task, as many as are wanted."""

    task: Task
    split: str
    hashed_as: ClassVar[str] = "Lot"  # its name in fingerprints of saved runs

    def __len__(self) -> int:
        """How many are measured at most."""
        return MOST

    def rows(self, count: int, seed: int = 0, step: int = 0) -> list[TaskRow]:
        """Rows, the same for the same seed and step; fewer are the first of more.

        Errors: ValueError where none comes in many draws: the task has too few.
        """
        rng = numpy.random.default_rng((SPLITS.index(self.split), seed, step))
        return [self._row(rng) for _ in range(count)]

    def _row(self, rng: numpy.random.Generator) -> TaskRow:
        for _ in range(TRIED):
            if split_of((row := self.task.row(rng)).question) == self.split:
                return row
        raise ValueError(
            f"{self.task} has too few rows to split into {', '.join(SPLITS)}: none of {self.split} came in {TRIED:,} "
            "draws; give it larger sizes"
        )


@dataclass(frozen=True, eq=False)
class TaskData(Data):
    """Rows of a task, as many as are wanted. Those of train, valid and test are never the same.

    A question belongs to a split by its SHA-256; each split draws until it finds one of its own. Rows have the length
    that the task's sizes give them, so a length of training says nothing. A model that learns what comes next predicts
    the answers alone, one that fills in hides exactly these, and one that reads pairs has the questions for a source
    and the answers for a target; each row is read from a fresh state.
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
        """All splits of a task."""
        return cls(name, task, *(TaskSplit(task, split) for split in SPLITS))

    def metric(self, model: Model) -> Metric:
        return ACCURACY

    def longest_length(self, length: int) -> int:
        return self.task.width

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Batches:
        """Batches drawn by seed and step, and of valid always the same rows."""

        def draw_batch(step: int) -> Any:
            return of_form(self.train.rows(batch, seed, step), model.reads)

        rows = self.valid.rows(self.count(limit))
        lots = (rows[first : first + MEASURED] for first in range(0, len(rows), MEASURED))
        return Batches(draw_batch, [of_form(lot, model.reads) for lot in lots])

    def count(self, limit: int) -> int:
        """How many rows of at most so many bytes in all are measured."""
        return max(1, min(MOST, limit // self.task.width))

    def levels(self, model: Model, split: str, length: int, limit: int) -> dict[str, float]:
        return {"guessing": self.task.chance_accuracy}

    def prompts(self, model: Model, split: str, count: int, length: int, tokens: int) -> Prompts:
        """Rows up to their last answer; of what reads pairs questions for sources."""
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
    """The split of a question: train, valid or test, by its SHA-256."""
    place = int.from_bytes(digest(question)[:8]) / 2**64
    return "valid" if place < HELD else "test" if place < 2 * HELD else "train"


def of_form(rows: Sequence[TaskRow], reads: str) -> TokenBatch | tuple[Tensor, TokenBatch]:
    """Rows as a model takes them: what reads pairs as source and target, any other as a row with its answers marked."""
    if reads != "pairs":
        return TokenBatch(
            pad_sequences([row.text for row in rows]), pad_sequences([row.answer_mask for row in rows], 0).bool()
        )
    target = pad_sequences([row.answer for row in rows])
    return pad_sequences([row.question for row in rows]), TokenBatch(target, target >= 0)


def read(where: str, **sizes: str) -> TaskData:
    """A task of the folder, or of a user's own FILE.py:Name, with sizes like pairs=16.

    Raises ValueError, in one line, for a name or a size that is not there, with the nearest, and what the task refuses.
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
        raise ValueError(f"there is no task {name!r}{suggest_names(name, files)}")
    kinds = [
        value for value in vars(files[name]).values() if _is_task(value) and value.__module__ == files[name].__name__
    ]
    if not kinds:
        raise ValueError(f"the file of the task {name!r} holds no Task")
    return kinds[-1]


def _own_task_kind(where: str) -> type[Task]:
    path, name = where.rsplit(":", 1)
    try:
        kinds = {value.__name__: value for value in vars(load_user_module(path)).values() if _is_task(value)}
    except (LookupError, ImportError) as error:
        raise ValueError(str(error)) from error
    if name not in kinds:
        raise ValueError(f"{path} has no task {name!r}{suggest_names(name, kinds)}")
    return kinds[name]


def _is_task(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Task) and value is not Task
