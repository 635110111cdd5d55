"""Sets that are made up: numbers whose largest is asked for, and elements of several kinds that are to be counted."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy
from numpy import ndarray
from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_in_range, check_whole_between
from kinformer.lab.data.images import read as read_images


class AnsweredSet(NamedTuple):
    """A set, its elements [n C] in the order in which they were drawn, and the right answer."""

    elements: ndarray
    answer: float


class Problem(ABC):
    """Sets of up to `most` elements of `inputs` numbers each; `answer` names the kind of answers."""

    answer: ClassVar[str]
    most: int

    @property
    @abstractmethod
    def inputs(self) -> int:
        """How many numbers an element is."""

    @abstractmethod
    def draw(self, rng: Generator, split: str) -> AnsweredSet:
        """A set, drawn from what belongs to a split, where that is said of elements."""


@dataclass(frozen=True)
class Maximum(Problem):
    """The largest of 1 to `most` numbers from 0 to 1: the paper's first task, whose numbers are a hundred times these.

    The mean of all answers is off by 0.2 or so. Source: Lee et al., 2018, arXiv:1810.00825, section 5.1.
    """

    answer: ClassVar[str] = "number"
    most: int = 10

    def __post_init__(self) -> None:
        check_at_least("most", self.most, 1)

    @property
    def inputs(self) -> int:
        return 1

    def draw(self, rng: Generator, split: str) -> AnsweredSet:
        elements = rng.random((int(rng.integers(1, self.most + 1)), 1)).astype(numpy.float32)
        return AnsweredSet(elements, float(elements.max()))


class CountingProblem(Problem):
    """How many kinds the elements of a set are of: 1 up to as many as there are elements or kinds, each as likely."""

    answer: ClassVar[str] = "count"
    least: int
    most: int

    @property
    @abstractmethod
    def kind_count(self) -> int:
        """How many kinds there are."""

    @abstractmethod
    def elements(self, kinds: ndarray, rng: Generator, split: str) -> ndarray:
        """An element of each of these kinds [n C]."""

    def draw(self, rng: Generator, split: str) -> AnsweredSet:
        size = int(rng.integers(self.least, self.most + 1))
        count = int(rng.integers(1, min(size, self.kind_count) + 1))
        chosen = rng.choice(self.kind_count, count, replace=False)
        kinds = numpy.concatenate([chosen, rng.choice(chosen, size - count)])
        return AnsweredSet(self.elements(kinds, rng, split).astype(numpy.float32), float(count))


@dataclass(frozen=True)
class Unique(CountingProblem):
    """How many different vectors stand in a set of `least` to `most`.

    A stand-in for the paper's second task, which shows characters of Omniglot, those of its test in none of training:
    each set has vectors of its own, of `inputs` normal numbers, and `noise` times as much is added to each element. So
    elements must be held against one another. Source: Lee et al., 2018, arXiv:1810.00825, section 5.2.
    """

    least: int = 6
    most: int = 10
    inputs: int = 4
    noise: float = 0.1

    def __post_init__(self) -> None:
        check_whole_between("least", self.least, 1, check_at_least("most", self.most, 1))
        check_at_least("inputs", self.inputs, 1)
        check_in_range("noise", self.noise, 0, 10)

    @property
    def kind_count(self) -> int:
        return self.most

    def elements(self, kinds: ndarray, rng: Generator, split: str) -> ndarray:
        vectors = rng.standard_normal((self.most, self.inputs))
        return vectors[kinds] + self.noise * rng.standard_normal((len(kinds), self.inputs))


@dataclass(frozen=True)
class Pictures(CountingProblem):
    """How many different labels the pictures of a set have: digits of MNIST stand in for the paper's characters.

    A picture is its intensities from 0 to 1, one after the other; each split has pictures of its own, of the same
    labels, where the paper's test has characters that training never showed.

    images: a folder or an .npz, as of `images=`.

    Source: Lee et al., 2018, arXiv:1810.00825, section 5.2.
    """

    images: str = ""
    least: int = 6
    most: int = 10
    _held: dict[str, list[ndarray]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole_between("least", self.least, 1, check_at_least("most", self.most, 1))
        if not self.images:
            raise ValueError("pictures of what? give images=FOLDER, such as that of MNIST's files")
        images = read_images(self.images)
        lots = {split: [x.numpy() for x in getattr(images, split)] for split in ("train", "valid", "test")}
        labels = numpy.unique(lots["train"][1])
        by_label = {}
        for split, (pixels, of) in lots.items():
            by_label[split] = [pixels[of == label].reshape(int((of == label).sum()), -1) for label in labels]
            if any(not len(label) for label in by_label[split]):
                raise ValueError(f"images={self.images} has a label of train with no picture in {split}; give more")
        object.__setattr__(self, "_held", by_label)

    @property
    def inputs(self) -> int:
        return int(self._held["train"][0].shape[1])

    @property
    def kind_count(self) -> int:
        return len(self._held["train"])

    def elements(self, kinds: ndarray, rng: Generator, split: str) -> ndarray:
        lots = [self._held[split][kind] for kind in kinds]
        return numpy.stack([lot[int(rng.integers(len(lot)))] for lot in lots]) / 255


PROBLEMS: dict[str, type[Problem]] = {"maximum": Maximum, "unique": Unique, "pictures": Pictures}
