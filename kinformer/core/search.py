"""Search: vectors that lie somewhere, and what is found of them for a query."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 1 << 13  # vectors that are looked at together
Block = tuple[int, Float[Tensor, "S D"]]  # the number of the first of some vectors, and these


class Found(NamedTuple):
    """For each query the nearest vectors, nearest first; where there are fewer, inf and -1.

    distances: squared and Euclidean. places: which vectors they are.
    """

    distances: Float[Tensor, "N k"]
    places: Int[Tensor, "N k"]


class Vectors(ABC):
    """`count` vectors of one `width`, in memory or on a disk, numbered from 0."""

    count: int
    width: int

    @abstractmethod
    def blocks(self, size: int = BLOCK, begin: int = 0, end: int | None = None) -> Iterator[Block]:
        """From one number up to another, all of them unless given, at most `size` at a time.

        Each block comes with the number of its first, and is only read: it may lie in a file that cannot be written
        to, where writing ends the process.
        """

    @abstractmethod
    def at(self, places: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        """Some of them by their numbers."""


def spread(count: int, size: int) -> Int[Tensor, " size"]:
    """So many of `count` numbers from 0, evenly apart, the first and the last among them; no more than there are."""
    size = min(size, count)
    return torch.arange(size, device="cpu") * (count - 1) // max(size - 1, 1)


class Held(Vectors):
    """The rows of one tensor."""

    def __init__(self, rows: Float[Tensor, "S D"]):
        self.rows = rows
        self.count, self.width = rows.shape

    def blocks(self, size: int = BLOCK, begin: int = 0, end: int | None = None) -> Iterator[Block]:
        last = self.count if end is None else end
        yield from zip(range(begin, last, size), self.rows[begin:last].split(size), strict=False)

    def at(self, places: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        return self.rows.index_select(0, places)  # copies whole rows


class Search(ABC):
    """A way to find vectors: by distance among many that stay as they are, or by inner product among keys to come."""

    kind: ClassVar[str] = "search"  # what messages call it

    @abstractmethod
    def index(self, vectors: Vectors) -> "Index":
        """These vectors, made ready to be searched."""

    @abstractmethod
    def products(self, width: int) -> "Products | None":
        """What finds candidates by inner product among keys of this width, none yet; None where all are scored."""


class Index(ABC):
    """Vectors that can be searched."""

    @abstractmethod
    def search(self, queries: Float[Tensor, "N D"], k: int) -> Found:
        """The k nearest of each query, or as many as there are; of equally near ones the first."""


class Products(ABC):
    """Keys to which others may be added, and of which those are found whose product with a query is large."""

    @abstractmethod
    def add(self, keys: Float[Tensor, "S K"]) -> None:
        """Put keys behind those that are there."""

    @abstractmethod
    def find(self, queries: Float[Tensor, "N K"], k: int) -> Int[Tensor, "N R"]:
        """k candidates of each query at least, or all there are, by their numbers; -1 where it finds fewer."""
