"""Search: vectors in memory or on a disk, indices that find the vectors nearest to a query, and searches by name."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import modules, parse_keywords

BLOCK = 1 << 13  # vectors of a block, unless another size is given
LONG = 2.0**60  # length from which squared distances may overflow float32, which datastores and FAISS use
SCALE = "Multiply vectors and queries by 2^-32, say, which does not change their order"
VectorBlock = tuple[int, Float[Tensor, "S D"]]  # the number of the block's first vector, and its vectors


class SearchResult(NamedTuple):
    """For each query the nearest vectors, nearest first; where there are fewer, inf and -1.

    distances: squared Euclidean distances. places: the numbers of the vectors.
    """

    distances: Float[Tensor, "N k"]
    places: Int[Tensor, "N k"]


class Vectors(ABC):
    """`count` vectors of one `width`, in memory or on a disk, numbered from 0."""

    count: int
    width: int

    @abstractmethod
    def blocks(self, size: int = BLOCK) -> Iterator[VectorBlock]:
        """All vectors in order, at most `size` at a time, each block with the number of its first vector.

        Only read a block: it may lie in a file that is mapped without write access, where a write ends the process.
        """

    @abstractmethod
    def at(self, places: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        """The vectors with these numbers."""


def evenly_spaced(count: int, size: int) -> Int[Tensor, " size"]:
    """So many of `count` numbers from 0, evenly apart, the first and the last among them; no more than there are."""
    size = min(size, count)
    return torch.arange(size, device="cpu") * (count - 1) // max(size - 1, 1)


class TensorVectors(Vectors):
    """The rows of one tensor."""

    def __init__(self, rows: Float[Tensor, "S D"]):
        self.rows = rows
        self.count, self.width = rows.shape

    def blocks(self, size: int = BLOCK) -> Iterator[VectorBlock]:
        yield from zip(range(0, self.count, size), self.rows.split(size), strict=False)

    def at(self, places: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        return self.rows.index_select(0, places)  # faster than indexing: it copies whole rows


class Search(ABC):
    """A method to find vectors: by distance among fixed vectors, or by inner product among keys that are added."""

    kind: ClassVar[str] = "search"  # the word for it in error messages

    @abstractmethod
    def index(self, vectors: Vectors) -> "VectorIndex":
        """Build an index of these vectors."""

    @abstractmethod
    def product_index(self, width: int) -> "ProductIndex | None":
        """An empty index of keys of this width, searched by inner product; None if every key is to be scored."""


class VectorIndex(ABC):
    """Vectors that can be searched by distance."""

    @abstractmethod
    def search(self, queries: Float[Tensor, "N D"], k: int) -> SearchResult:
        """The k nearest of each query, or as many as there are; of equally near ones the first."""


def check_queries(queries: Float[Tensor, "N D"], vectors: Vectors) -> Float[Tensor, "N D"]:
    """Queries in float64 on the CPU; ValueError if their width, a number or a length does not allow a search."""
    if queries.dim() != 2 or queries.shape[1] != vectors.width:
        raise ValueError(
            f"search failed: got queries of shape {list(queries.shape)}, expected [N, {vectors.width}]. Give each "
            "query the width of the keys"
        )
    queries = queries.detach().cpu().double()
    if not bool(queries.isfinite().all()):
        raise ValueError("search failed: got a query with NaN or infinity, expected finite numbers. Mend the query")
    if bool((queries.square().sum(1) >= LONG**2).any()):
        raise ValueError(f"search failed: got a query of length 2^60 or more. {SCALE}")
    return queries


class ProductIndex(ABC):
    """Keys that are added over time and found if their inner product with a query is large."""

    @abstractmethod
    def add(self, keys: Float[Tensor, "S K"]) -> None:
        """Append keys; they are numbered in order."""

    @abstractmethod
    def find(self, queries: Float[Tensor, "N K"], k: int) -> Int[Tensor, "N R"]:
        """The numbers of at least k candidates of each query, or of all keys; -1 if fewer are found."""


def search_named(text: str) -> Search:
    """The search that a text names, such as "exact", "hnsw" or "ivf:lists=64,probes=4".

    The name is that of a file in a folder `search`, its numbers are keywords of the `Search` in that file. Errors:
    ValueError, in one line, for another name, keyword or number.
    """
    name, _, numbers = text.partition(":")
    files = modules("search")
    if name not in files:
        raise ValueError(f"there is no search {name!r}{suggest_names(name, files, '')}; choose {', '.join(files)}")
    kind = next(
        value
        for value in vars(files[name]).values()
        if inspect.isclass(value) and issubclass(value, Search) and value.__module__ == files[name].__name__
    )
    try:
        return kind(**parse_keywords(kind, tuple(numbers.split(",") if numbers else ())))
    except TypeError as error:
        raise ValueError(f"{text!r} names no search: {error}") from error


def format_search(search: Search) -> str:
    """The text from which `search_named` makes this search."""
    name = type(search).__module__.rpartition(".")[2]
    numbers = ",".join(f"{keyword}={value}" for keyword, value in vars(search).items() if value is not None)
    return f"{name}:{numbers}" if numbers else name
