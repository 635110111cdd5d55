"""Several tasks of labelled texts: a folder with one file per task, each in the form of `labelled=`.

Choose `multitask=FOLDER` to train one encoder on all tasks. A batch has rows of many tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy
import torch

from kinformer.checkpoint.atomic_files import existing_path
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.core.checks import check_in_range, check_option
from kinformer.core.model import Model, display_name
from kinformer.core.quote import quote
from kinformer.lab.data import labelled
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Stream, named
from kinformer.lab.data.support.text_pair_rows import TextPairRow, refuse_fields, two_columns
from kinformer.lab.data.support.uncertainty_sampling import Candidates, UncertaintySampling

FORM, SERVES = "multitask=FOLDER", ("multitask",)
BETWEEN = ": "  # separates the name of a task from its label
Sampling = Literal["random", "uncertainty", "published_uncertainty"]


@dataclass(frozen=True, eq=False)
class MultitaskData(labelled.LabelledData):
    """Texts of several tasks in three splits, each text with the number of its class.

    Classes are numbered through all tasks, and the classes of one task are consecutive. A text is only in one split,
    unless the validation texts are in another folder.

    labels: the names of the classes in the order of their numbers, each "TASK: LABEL".
    sampling: rule that draws the rows of a training batch. "random" draws them by `power`. "uncertainty" draws equally
        many rows of each task, and uses only those for which the model is least certain of the class.
        "published_uncertainty" does so like the authors' code; see `UncertaintySampling`.
    power: with "random", the probability of a task is proportional to its number of texts to this power. With 1 all
        texts are equally likely, with 0 all tasks.
    """

    noun: ClassVar[str] = "labelled text of several tasks"
    serves: ClassVar[tuple[str, ...]] = SERVES
    sampling: Sampling = "random"
    power: float = 1.0

    @property
    def draw_settings(self) -> dict[str, Any]:
        return {"sampling": self.sampling, "power": self.power}

    @property
    def classes(self) -> tuple[int, ...]:
        """Number of classes of each task."""
        return tuple(len(list(labels)) for _, labels in groupby(label.split(BETWEEN)[0] for label in self.labels))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return tuple(name for name, _ in groupby(label.split(BETWEEN)[0] for label in self.labels))

    @property
    def tasks(self) -> tuple[range, ...]:
        ends = numpy.cumsum(self.classes).tolist()
        return tuple(range(end - count, end) for end, count in zip(ends, self.classes, strict=True))

    def _by_task(self, rows: Sequence[labelled.Row]) -> str:
        counts = {
            name: sum(label in task for _, label in rows) for name, task in zip(self.names, self.tasks, strict=True)
        }
        return f", {', '.join(f'{count:,} of {name}' for name, count in counts.items())}"

    @property
    def sizes(self) -> dict[str, int]:
        return {"vocab": self.vocab}

    @property
    def keywords(self) -> dict[str, Any]:
        return {"classes": self.classes}

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Stream:
        """Return training batches, drawn at random or chosen by the model, and a validation sample.

        The validation sample has at most `limit` tokens.

        Errors: ValueError if the model was made for other numbers of classes.
        """
        if (model_classes := getattr(model, "classes", self.classes)) != self.classes:
            name = (
                f"this {display_name(model)} has tasks of {model_classes} classes, but {self.name} has {self.classes}"
            )
            raise ValueError(f"{name}; give it classes={','.join(map(str, self.classes))}")
        cut, of_class = self.truncate(length), numpy.arange(len(self.classes)).repeat(self.classes)
        by_task = [[row for row in cut.train if of_class[row[1]] == task] for task in range(len(self.classes))]
        sample, size = labelled.sample_of(cut.valid, limit), labelled.MEASURED
        measured = tuple(self._rows(sample[first : first + size]) for first in range(0, len(sample), size))
        if self.sampling == "random":
            return Batches(partial(self._draw_by_size, by_task, batch, seed), measured)
        of_each = partial(self._draw_of_each, by_task, batch, seed)
        return UncertaintySampling(model, of_each, batch, self.classes, self.sampling, measured)

    def _draw_by_size(self, by_task: list[list[labelled.Row]], batch: int, seed: int, step: int) -> Candidates:
        """Draw rows of tasks with probabilities proportional to their size to a power."""
        share = numpy.array([float(len(rows)) for rows in by_task]) ** self.power
        rng = numpy.random.default_rng((seed, step))
        tasks = rng.choice(len(by_task), size=batch, p=share / share.sum())
        return self._rows([by_task[task][rng.integers(len(by_task[task]))] for task in tasks])

    def _draw_of_each(self, by_task: list[list[labelled.Row]], batch: int, seed: int, step: int) -> Candidates:
        """Draw equally many rows of each task; each row is used once before any is repeated."""
        return self._rows(
            [row for task, rows in enumerate(by_task) for row in in_turn(rows, batch, (seed, task), step)]
        )

    def _rows(self, rows: Sequence[labelled.Row]) -> Candidates:
        tokens, labels = labelled.rows(rows)
        of_class = torch.arange(len(self.classes)).repeat_interleave(torch.tensor(self.classes))
        return Candidates(tokens, of_class[labels], labels)


def in_turn(rows: Sequence[labelled.Row], batch: int, seed: tuple[int, ...], step: int) -> list[labelled.Row]:
    """Return the next `batch` rows of one task; every pass over its rows has a new random order.

    rows: the rows of one task.
    batch: rows per step.
    seed: seed of the random orders.
    step: the step.
    """
    chosen: list[labelled.Row] = []
    for place in range(step * batch, (step + 1) * batch):
        turn, at = divmod(place, len(rows))
        if not chosen or at == 0:
            order = numpy.random.default_rng((*seed, turn)).permutation(len(rows))
        chosen.append(rows[order[at]])
    return chosen


@named
def read(
    where: str,
    *,
    label: str = "",
    text: str = "",
    tokenizer: str | Tokenizer = "bytes",
    valid: str = "",
    sampling: str = "random",
    power: str = "1",
) -> MultitaskData:
    """Read the tasks of a folder, one file each, split about 90 : 5 : 5 by the SHA-256 of each text.

    The texts of all tasks are split together. The name of a task is the name of its file up to the first dot.

    where: the folder.
    label, text, tokenizer: as for `labelled=`.
    valid: another folder for validation, with files of the same names.
    sampling, power: as for `MultitaskData`.

    Errors: the errors of `labelled=`. ValueError if the folder has fewer than two files, or if a task has only one
    label in train. ValueError for an unknown sampling, for a power outside 0 to 1, and for a power if the sampling is
    not "random".
    """
    chosen = check_option("sampling", cast(Sampling, sampling), Sampling)
    if chosen != "random" and power != "1":
        raise ValueError(
            f"sampling={sampling} draws equally many rows of each task, so power={power} has no effect; leave one out"
        )
    try:
        exponent = check_in_range("power", float(power), 0, 1)
    except ValueError as error:
        raise ValueError(
            f"power={quote(power)} is invalid: give a number from 0 (all tasks equally often) to 1 (by size)"
        ) from error
    name, fields = f"multitask={where}", (label or labelled.NAMES[0], text or labelled.NAMES[1])
    all_of, valid_rows = _tasks(where, fields), _tasks(valid, fields) if valid else None
    folders = [folder for folder in (where, valid) if folder]
    refuse_fields(name, [str(path) for folder in folders for path in _files(folder)], label=label, text=text)
    data = labelled.split(name, all_of, valid_rows, tokenizer)
    tasks_data = MultitaskData(**vars(data), sampling=chosen, power=exponent)
    unlearned = {row.texts[0].partition(BETWEEN.encode())[0].decode(errors="replace") for row in all_of}
    for task, task_labels in groupby(tasks_data.labels, lambda label: label.split(BETWEEN)[0]):
        unlearned.discard(task)
        if len(list(task_labels)) < 2:
            raise ValueError(
                f"task {task!r} of {name} has only one label in its training texts; give texts of at least two labels"
            )
    if unlearned:
        raise ValueError(f"task {min(unlearned)!r} of {name} has no training text; give it more texts")
    tasks = ", ".join(
        f"{name} ({len(labels)} labels)" for name, labels in zip(tasks_data.names, tasks_data.tasks, strict=True)
    )
    return replace(tasks_data, split=f"{tasks_data.split}; tasks: {tasks}")


def _tasks(where: str, fields: tuple[str, str]) -> list[TextPairRow]:
    """Read the rows of all files, with the name of the task before each label."""
    folder = existing_path(where, "write multitask=FOLDER, with a file for each task")
    if not folder.is_dir():
        raise ValueError(f"multitask={where} is a file; give a folder with a file for each task, or labelled={where}")
    files = _files(str(folder))
    names = [path.name.split(".")[0] for path in files]
    if len(files) < 2:
        raise ValueError(
            f"multitask={where} has too few tasks: got {len(files)} files, expected at least 2. Give a folder with a "
            "file for each task"
        )
    for n, name in enumerate(names):
        if name in names[:n] or BETWEEN in name:
            raise ValueError(
                f"{files[n]} cannot name the task {name!r}: another file does, or the name contains {BETWEEN!r}. "
                "Rename the file"
            )
    return [_with_task_name(row, name) for path, name in zip(files, names, strict=True) for row in _read(path, fields)]


def _files(folder: str) -> list[Path]:
    """The files of a folder except hidden files."""
    inside = Path(folder).expanduser().iterdir()
    return sorted(path for path in inside if path.is_file() and not path.name.startswith("."))


def _read(path: Path, fields: tuple[str, str]) -> list[TextPairRow]:
    return two_columns("labelled", str(path), labelled.NAMES, fields)


def _with_task_name(row: TextPairRow, task: str) -> TextPairRow:
    return row._replace(texts=(f"{task}{BETWEEN}".encode() + row.texts[0], row.texts[1]))
