"""Several tasks of labelled texts: a folder with a file for each, of the form that `labelled=` reads.

Choose `multitask=FOLDER` to train one encoder on all of them. A batch has rows of many tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy
import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import within
from kinformer.core.model import Model
from kinformer.data import labelled
from kinformer.data.batches import Batches
from kinformer.data.files import found
from kinformer.data.support.columns import Two, two_columns

FORM, SERVES = "multitask=FOLDER", ("multitask",)
BETWEEN = ": "  # stands between the names of a task and of its label
Batch = tuple[Int[Tensor, "B T"], Int[Tensor, " B"], Int[Tensor, " B"]]


@dataclass(frozen=True, eq=False)
class Multitask(labelled.Labelled):
    """Three lots of texts with the number of their class, counted through all tasks; a text is in one of them alone.

    labels: the classes by their numbers, "TASK: LABEL", those of a task one after the other.
    power: how often a task is drawn: by its number of texts to this power, 1 by size, 0 all alike.
    """

    what: ClassVar[str] = "several labelled tasks"
    serves: ClassVar[tuple[str, ...]] = SERVES
    power: float = 1.0

    @property
    def classes(self) -> tuple[int, ...]:
        """How many labels each task has."""
        return tuple(len(list(some)) for _, some in groupby(label.split(BETWEEN)[0] for label in self.labels))

    @property
    def sizes(self) -> dict[str, int]:
        return {"vocab": self.vocab}

    @property
    def keywords(self) -> dict[str, Any]:
        return {"classes": self.classes}

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Batches:
        """Batches of rows whose tasks are drawn by seed and step, and of valid its first, up to `limit` bytes."""
        if (known := getattr(model, "classes", self.classes)) != self.classes:
            name = f"this {type(model).__name__} knows tasks of {known} classes, and {self.name} has {self.classes}"
            raise ValueError(f"{name}; give it classes={','.join(map(str, self.classes))}")
        kept, of_class = self.within(length), numpy.arange(len(self.classes)).repeat(self.classes)
        by_task = [[row for row in kept.train if of_class[row[1]] == task] for task in range(len(self.classes))]
        share = numpy.array([float(len(some)) for some in by_task]) ** self.power

        def drawn(step: int) -> Batch:
            chance = numpy.random.default_rng((seed, step))
            tasks = chance.choice(len(by_task), size=batch, p=share / share.sum())
            return self._rows([by_task[task][chance.integers(len(by_task[task]))] for task in tasks])

        some, size = kept._watched(limit), labelled.MEASURED
        return Batches(drawn, [self._rows(some[first : first + size]) for first in range(0, len(some), size)])

    def _rows(self, some: Sequence[labelled.Row]) -> Batch:
        tokens, wanted = labelled.rows(some)
        of_class = torch.arange(len(self.classes)).repeat_interleave(torch.tensor(self.classes))
        return tokens, of_class[wanted], wanted


def read(
    where: str, *, label: str = "label", text: str = "text", tokenizer: str = "bytes", valid: str = "", power: str = "1"
) -> Multitask:
    """The tasks of a folder, a file each, split together about 90 : 5 : 5 by the SHA-256 of each text.

    A task is called as its file is, without what stands behind a dot. label, text, tokenizer: as those of `labelled=`;
    valid: another folder, with files of the same names. power: see `Multitask`.

    Errors: as those of `labelled=`, and ValueError for a folder of fewer than two files, for a task that has one label
    alone to learn from, and for a power that is no number from 0 to 1.
    """
    try:
        drawn = within("power", float(power), 0, 1)
    except ValueError as error:
        raise ValueError(f"power={power!r}: give a number from 0, all tasks alike, to 1, by size") from error
    name, fields = f"multitask={where}", (label, text)
    all_of, others = _tasks(where, fields), _tasks(valid, fields) if valid else None
    one = labelled.split(name, all_of, others, tokenizer)
    made = Multitask(**vars(one), power=drawn)
    wanted = {row.texts[0].partition(BETWEEN.encode())[0].decode(errors="replace") for row in all_of}
    for task, some in groupby(made.labels, lambda label: label.split(BETWEEN)[0]):
        wanted.discard(task)
        if len(list(some)) < 2:
            raise ValueError(f"task {task!r} of {name} has one label alone to learn from; give texts of at least two")
    if wanted:
        raise ValueError(f"task {min(wanted)!r} of {name} has no text to learn from; give it more")
    return made


def _tasks(where: str, fields: tuple[str, str]) -> list[Two]:
    """The rows of all files, their labels behind the names of their tasks."""
    folder = found(where, f"there is no folder {where}; write multitask=FOLDER, with a file for each task")
    if not folder.is_dir():
        raise ValueError(f"multitask={where} is a file; give a folder with a file for each task, or labelled={where}")
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    names = [path.name.split(".")[0] for path in files]
    if len(files) < 2:
        raise ValueError(
            f"multitask={where} has {len(files)} files; give a folder with a file for each task, at least two"
        )
    for n, name in enumerate(names):
        if name in names[:n] or BETWEEN in name:
            raise ValueError(f"{files[n]} is of task {name!r}; give each file a name of its own, without {BETWEEN!r}")
    return [_named(row, name) for path, name in zip(files, names, strict=True) for row in _read(path, fields)]


def _read(path: Path, fields: tuple[str, str]) -> list[Two]:
    return two_columns("labelled", str(path), labelled.NAMES, fields)


def _named(row: Two, task: str) -> Two:
    return row._replace(texts=(f"{task}{BETWEEN}".encode() + row.texts[0], row.texts[1]))
