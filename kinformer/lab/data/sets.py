"""Sets of vectors with one number as the answer: generated when needed, or read from a .npz.

Choose `sets=maximum` for the largest of several numbers. Choose `sets=unique` or `sets=pictures,images=FOLDER` to count
the different kinds of elements in a set. Choose `sets=FILE.npz` for your own sets. A batch is (elements [B T C], marks
[B T], answers [B]); a mark is -1 for padding, else 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from kinformer.checkpoint.atomic_files import digest, existing_path
from kinformer.core.checks import check_option
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.keywords import parse_keywords
from kinformer.core.model import Model, display_name
from kinformer.core.quote import quote
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data, named
from kinformer.lab.data.support.npz_arrays import read_arrays
from kinformer.lab.data.support.safe_scales import refuse_flattened
from kinformer.lab.data.support.set_problems import PROBLEMS, AnsweredSet, Problem
from kinformer.lab.data.support.train_valid_test import TEST, VALID
from kinformer.lab.data.task import split_of

FORM, SERVES = "sets=maximum,most=10", ("sets",)
SPLITS = ("train", "valid", "test")
MEASURED, MOST = 64, 512  # sets of a validation batch, and of a validation
TRIED = 10_000  # draws after which a split counts as empty
ANSWERS = ("number", "count")
SetBatch = tuple[Float[Tensor, "B T C"], Int[Tensor, "B T"], Float[Tensor, " B"]]


@dataclass(frozen=True)
class GeneratedSets:
    """An endless source of random sets of one split; the elements of a set decide its split.

    problem: the problem that makes sets and their answers.
    split: "train", "valid" or "test".
    """

    hashed_as: ClassVar[str] = "Made"
    problem: Problem
    split: str

    def __len__(self) -> int:
        """Return the maximum number of sets that are measured."""
        return MOST

    def draw(self, count: int, seed: int = 0, step: int = 0) -> SetBatch:
        """Draw sets; the same seed and step give the same sets.

        count: number of sets.
        seed, step: seed and step of the draw.

        Errors: ValueError if no set of this split is found in many draws.
        """
        rng = numpy.random.default_rng((SPLITS.index(self.split), seed, step))
        sets = [self._draw_one(rng) for _ in range(count)]
        elements = torch.zeros(count, max(len(example.elements) for example in sets), self.problem.inputs)
        marks = torch.full(elements.shape[:2], -1)
        for n, example in enumerate(sets):
            elements[n, : len(example.elements)], marks[n, : len(example.elements)] = (
                torch.from_numpy(example.elements),
                0,
            )
        return elements, marks, torch.tensor([example.answer for example in sets])

    first_sets = draw

    def _draw_one(self, rng: numpy.random.Generator) -> AnsweredSet:
        for _ in range(TRIED):
            if split_of(set_key((example := self.problem.draw(rng, self.split)).elements)) == self.split:
                return example
        raise ValueError(
            f"{self.problem} has too few sets to split into {', '.join(SPLITS)}: no set of {self.split} in {TRIED:,} "
            "draws; give it larger sizes"
        )


class StoredSets(NamedTuple):
    """The sets of one split that were read from a file.

    elements: the padded elements of the sets.
    marks: 0 for an element, -1 for padding.
    answers: the answers.
    """

    elements: Float[Tensor, "N T C"]
    marks: Int[Tensor, "N T"]
    answers: Float[Tensor, " N"]

    def draw(self, count: int, seed: int = 0, step: int = 0) -> SetBatch:
        """Draw `count` sets at random; the same seed and step give the same sets."""
        at = torch.from_numpy(numpy.random.default_rng((seed, step)).integers(len(self.answers), size=count))
        return self.elements[at], self.marks[at], self.answers[at]

    def first_sets(self, count: int) -> SetBatch:
        """Return the first `count` sets."""
        return self.elements[:count], self.marks[:count], self.answers[:count]


@dataclass(frozen=True, eq=False)
class SetData(Data):
    """Sets in three splits; sets with the same elements in any order are only in one of them.

    name: the specification of the data, "sets=...".
    train, valid, test: the sets of the splits.
    inputs: number of values in an element.
    answer: "number" if answers are any numbers, "count" if they are integers from 0 on.
    most: number of elements in the largest set.
    split: one line about how the data is split in three.
    """

    noun: ClassVar[str] = "sets"
    counted: ClassVar[str] = "numbers"
    serves: ClassVar[tuple[str, ...]] = SERVES
    sized = False
    name: str
    train: GeneratedSets | StoredSets
    valid: GeneratedSets | StoredSets
    test: GeneratedSets | StoredSets
    inputs: int
    answer: str
    most: int
    split: str = ""

    @property
    def keywords(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "answer": self.answer}

    def longest_length(self, length: int) -> None:
        return None

    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Batches:
        """Return random training batches, fixed by seed and step, and fixed validation sets.

        Errors: ValueError if the model reads other elements or gives other answers, or if valid is empty.
        """
        if isinstance(self.valid, StoredSets) and not len(self.valid.answers):
            raise ValueError(f"{self.name} has no sets in this split; choose another split, or give more sets")
        for name, actual in (
            ("inputs", getattr(model, "inputs", self.inputs)),
            ("answer", getattr(getattr(model, "answer", None), "name", self.answer)),
        ):
            if actual != (mine := self.keywords[name]):
                raise ValueError(
                    f"{self.name} has {name}={mine}, but this {display_name(model)} has {actual}; give {name}={mine}"
                )
        valid = self.valid.first_sets(self._count(limit))
        lots = zip(*(x.split(MEASURED) for x in valid), strict=True)
        return Batches(lambda step: self.train.draw(batch, seed, step), lots)

    def describe_sample(self, split: str, length: int, limit: int) -> str:
        score = f"always the same answer scores {self.constant_answer_score:.3f}"
        return f"{self._count(limit, split):,} sets of {split} ({score})"

    def levels(self, model: Model, split: str, length: int, limit: int) -> Mapping[str, float]:
        """Return the score of always giving the same answer; see `constant_answer_score`."""
        return {"always the same answer": self.constant_answer_score}

    @property
    def constant_answer_score(self) -> float:
        """Score of always the same answer: accuracy of the commonest count, or error of the median.

        The error is the mean absolute error. Both are computed on the first training sets.
        """
        right = self.train.first_sets(MOST)[2]
        best = right.mode().values if self.answer == "count" else right.median()
        return float((right == best).float().mean() if self.answer == "count" else (right - best).abs().mean())

    def _count(self, limit: int, split: str = "valid") -> int:
        count = len(part.answers) if isinstance(part := getattr(self, split), StoredSets) else MOST
        return max(1, min(count, limit // self.most))


def set_key(elements: ndarray) -> bytes:
    """Return bytes that identify a set [n C], whatever the order of its elements."""
    return b"".join(sorted(element.tobytes() for element in elements))


@named
def read(where: str, *, answer: str = "number", **sizes: str) -> SetData:
    """Return the generated sets of a problem, or read the sets of a .npz.

    A .npz holds `elements` [N T C] and `answers` [N], and `sizes` [N] if the sets have different numbers of elements.
    The first `sizes[n]` elements of set n are used. The split is about 90 : 5 : 5 by the SHA-256 of each set's
    elements.

    where: the name of a problem, or the .npz file.
    answer: for a .npz, "number" if answers are any numbers, "count" if they are integers from 0 on.
    sizes: sizes of the problem, such as most=20.

    Errors: FileNotFoundError if the file is missing. ValueError, in one line, for unknown problems and sizes and for
    arrays of another form.
    """
    if where in PROBLEMS:
        return _generated_data(where, answer, sizes)
    if not where.endswith(".npz"):
        raise ValueError(
            f"there is no problem {quote(where)} of sets{suggest_names(where, PROBLEMS)}; or give a FILE.npz"
        )
    if sizes:
        raise ValueError(f"sets=FILE.npz has no option {quote(min(sizes))}; its only option is answer")
    return _stored_data(where, check_option("answer", answer, ANSWERS))


def _generated_data(name: str, answer: str, sizes: dict[str, str]) -> SetData:
    kind = PROBLEMS[name]
    if answer != "number":
        raise ValueError(f"sets={name} has only answers of the kind {kind.answer}; leave out answer=")
    try:
        problem = kind(**parse_keywords(kind, [f"{key}={value}" for key, value in sizes.items()]))
    except TypeError as error:
        raise ValueError(str(error)) from error
    spelled = ",".join([f"sets={name}", *(f"{key}={value}" for key, value in sizes.items())])
    train, valid, test = (GeneratedSets(problem, split) for split in SPLITS)
    return SetData(spelled, train, valid, test, problem.inputs, problem.answer, problem.most)


def _stored_data(where: str, answer: str) -> SetData:
    path = existing_path(where, "write sets=FILE.npz")
    elements, marks, answers = _read_arrays(path)
    if answer == "count" and (answers != answers.round()).any() | (answers < 0).any():
        raise ValueError(f"{where} has answers that are not integers from 0 on; leave out answer=count")
    by_set: dict[bytes, list[int]] = {}
    for n, (element, mark) in enumerate(zip(elements, marks, strict=True)):
        by_set.setdefault(set_key(element[mark >= 0]), []).append(n)
    if len(by_set) < 2:
        raise ValueError(f"{where} has only one distinct set; give at least two, for training and for validation")
    keys = sorted(by_set, key=digest)
    valid_count, last = (round(len(keys) * share) for share in (VALID, TEST))
    ends = [0, len(keys) - max(1, valid_count) - last, len(keys) - last, len(keys)]
    lots = []
    for first, end in pairwise(ends):
        at = [n for key in keys[first:end] for n in by_set[key]]
        lots.append(StoredSets(*(torch.from_numpy(x[at]) for x in (elements, marks, answers))))
    counts = ", ".join(f"{len(lot.answers):,} {split}" for split, lot in zip(SPLITS, lots, strict=True))
    description = f"sets={where}: {counts}, by the SHA-256 of each set"
    train, valid, test = lots
    return SetData(f"sets={where}", train, valid, test, elements.shape[2], answer, elements.shape[1], description)


def _read_arrays(path: Path) -> tuple[ndarray, ndarray, ndarray]:
    """Return elements [N T C], marks [N T] and answers [N] of a file."""
    by_name = read_arrays(path)
    if missing := [name for name in ("elements", "answers") if name not in by_name]:
        raise ValueError(
            f"{path} lacks arrays: got {', '.join(by_name) or 'none'}, expected {' and '.join(missing)} too"
        )
    elements, answers = by_name["elements"], by_name["answers"]
    sizes = by_name.get("sizes", numpy.full(elements.shape[:1], elements.shape[1] if elements.ndim == 3 else 0))
    numbers = all(x.dtype.kind in "fiu" for x in (elements, answers)) and sizes.dtype.kind in "iu"
    if not numbers or elements.ndim != 3 or not elements.size or not answers.shape == sizes.shape == elements.shape[:1]:
        shapes = ", ".join(f"{name} {x.dtype}{list(x.shape)}" for name, x in by_name.items())
        raise ValueError(
            f"{path} has invalid arrays: got {shapes}, expected numbers in elements [N T C] and answers [N], and "
            "integers in sizes [N] if they are given"
        )
    if sizes.min() < 1 or sizes.max() > elements.shape[1]:
        raise ValueError(
            f"{path} has invalid sizes: got {sizes.min()} to {sizes.max()}, expected 1 to {elements.shape[1]} elements"
        )
    marks = numpy.where(numpy.arange(elements.shape[1]) < sizes[:, None], 0, -1)
    refuse_flattened(str(path), "elements", elements[marks >= 0])
    refuse_flattened(str(path), "answers", answers)
    with numpy.errstate(over="ignore"):  # too large values become infinite and are refused below
        elements, answers = elements.astype(numpy.float32), answers.astype(numpy.float32)
    if not (numpy.isfinite(elements[marks >= 0]).all() and numpy.isfinite(answers).all()):
        raise ValueError(f"{path} has a number that is not finite in float32; remove the set, or correct the number")
    return elements, marks, answers
