"""Generated sets: numbers with their largest as the answer, and elements with kinds to count."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy
from numpy import ndarray
from numpy.random import Generator

from kinformer.core.checks import check_at_least, check_in_range, check_whole_between
from kinformer.lab.data.images import read as read_images


class AnsweredSet(NamedTuple):
    """A set and its answer.

    elements: the elements [n C] in the order in which they were drawn.
    answer: the correct answer.
    """

    elements: ndarray
    answer: float


class Problem(ABC):
    """Base class of a problem: it makes random sets of up to `most` elements, each with its answer.

    A subclass supplies `draw`, `inputs`, and `answer`, the kind of the answers, "number" or "count".
    """

    answer: ClassVar[str]
    most: int

    @property
    @abstractmethod
    def inputs(self) -> int:
        """Number of values in an element."""

    @abstractmethod
    def draw(self, rng: Generator, split: str) -> AnsweredSet:
        """Return a random set; `split` has an effect if each split has its own elements."""


@dataclass(frozen=True)
class Maximum(Problem):
    """The largest of 1 to `most` numbers from 0 to 1, the first task of the paper.

    Always answering the median of all answers has a mean absolute error of about 0.15.

    most: maximum number of elements.

    Source: Lee et al., 2018, arXiv:1810.00825, section 5.1.

    Differences: the paper's numbers are a hundred times larger.
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
    """Base class of problems that ask for the number of different kinds among the elements of a set.

    The answer is 1 to the number of elements or of kinds, whichever is smaller. Each number is equally likely. A
    subclass supplies `kind_count` and `elements`.
    """

    answer: ClassVar[str] = "count"
    least: int
    most: int

    @property
    @abstractmethod
    def kind_count(self) -> int:
        """Number of kinds of elements that exist."""

    @abstractmethod
    def elements(self, kinds: ndarray, rng: Generator, split: str) -> ndarray:
        """Return one random element for each of these kinds, as an array [n C]."""

    def draw(self, rng: Generator, split: str) -> AnsweredSet:
        size = int(rng.integers(self.least, self.most + 1))
        count = int(rng.integers(1, min(size, self.kind_count) + 1))
        chosen = rng.choice(self.kind_count, count, replace=False)
        kinds = numpy.concatenate([chosen, rng.choice(chosen, size - count)])
        return AnsweredSet(self.elements(kinds, rng, split).astype(numpy.float32), float(count))


@dataclass(frozen=True)
class Unique(CountingProblem):
    """The number of different vectors in a set of `least` to `most` elements.

    Each set has its own vectors of `inputs` normal numbers. Noise is added to each element, so elements must be
    compared with one another.

    least, most: minimum and maximum number of elements.
    inputs: number of values in an element.
    noise: standard deviation of the noise.

    Source: Lee et al., 2018, arXiv:1810.00825, section 5.2.

    Differences: it replaces the paper's second task, which shows characters of Omniglot. The characters of the paper's
    test are not in its training.
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
    """The number of different labels among the images of a set, such as digits of MNIST.

    An element is the flattened intensities of an image from 0 to 1. Each split has its own images of the same labels.

    images: a folder or a .npz, as for `images=`.
    least, most: minimum and maximum number of elements.

    Errors: ValueError if a size is out of range, if `images` is empty, or if a split lacks a label of train.
    Source: Lee et al., 2018, arXiv:1810.00825, section 5.2.

    Differences: digits replace the characters of the paper. The paper's test has characters that training never shows.
    """

    images: str = ""
    least: int = 6
    most: int = 10
    _held: dict[str, list[ndarray]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole_between("least", self.least, 1, check_at_least("most", self.most, 1))
        if not self.images:
            raise ValueError("sets=pictures needs images: give images=FOLDER, such as a folder with the files of MNIST")
        images = read_images(self.images)
        lots = {split: [x.numpy() for x in getattr(images, split)] for split in ("train", "valid", "test")}
        labels = numpy.unique(lots["train"][1])
        by_label = {}
        for split, (pixels, of) in lots.items():
            by_label[split] = [pixels[of == label].reshape(int((of == label).sum()), -1) for label in labels]
            if any(not len(label) for label in by_label[split]):
                raise ValueError(
                    f"images={self.images} has no image of some training label in {split}; give more images"
                )
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
