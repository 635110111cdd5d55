"""Search for nearest vectors: sets of vectors, indexes over them, and search methods by name."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.named_part import part_named

BLOCK = 1 << 13  # default number of vectors in a block
LONG = 2.0**60  # from this length on squared distances may overflow float32, which datastores and FAISS use
SCALE = "Multiply vectors and queries by 2^-32, for example, which keeps the order of the neighbours"
VectorBlock = tuple[int, Float[Tensor, "S D"]]  # the index of the block's first vector, and its vectors


class SearchResult(NamedTuple):
    """The k vectors nearest to each query, nearest first.

    If there are fewer vectors, the remaining entries have distance inf and place -1.

    distances: squared Euclidean distances.
    places: the indices of the vectors in their set.
    """

    distances: Float[Tensor, "N k"]
    places: Int[Tensor, "N k"]


class Vectors(ABC):
    """Base class of sets of vectors of one width, in memory or on a disk, numbered from 0.

    count: the number of vectors.
    width: the number of coordinates of a vector.
    """

    count: int
    width: int

    @abstractmethod
    def blocks(self, size: int = BLOCK) -> Iterator[VectorBlock]:
        """Yield all vectors in order, at most `size` at a time, each block with the index of its first vector.

        Never write to a block: it may be part of a file that is mapped without write access, and a write would end the
        process.
        """

    @abstractmethod
    def at(self, places: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        """Return the vectors with the indices `places`."""


def evenly_spaced(count: int, size: int) -> Int[Tensor, " size"]:
    """Return `size` of the numbers 0 .. count - 1, evenly spaced, including the first and the last.

    count: the number of numbers.
    size: the number of results; at most `count` are returned.
    """
    size = min(size, count)
    return torch.arange(size, device="cpu") * (count - 1) // max(size - 1, 1)


class TensorVectors(Vectors):
    """The rows of one tensor as vectors.

    rows: the vectors, [S D].
    """

    def __init__(self, rows: Float[Tensor, "S D"]):
        self.rows = rows
        self.count, self.width = rows.shape

    def blocks(self, size: int = BLOCK) -> Iterator[VectorBlock]:
        yield from zip(range(0, self.count, size), self.rows.split(size), strict=False)

    def at(self, places: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        return self.rows.index_select(0, places)  # faster than indexing: it copies whole rows


class Search(KeywordHints, ABC):
    """Base class of methods to search for nearest vectors.

    A method searches fixed vectors by distance (`index`), or keys that are added over time by inner product
    (`product_index`).
    """

    kind: ClassVar[str] = "search"  # the word for it in error messages

    @abstractmethod
    def index(self, vectors: Vectors) -> "VectorIndex":
        """Build an index of these vectors."""

    @abstractmethod
    def product_index(self, width: int) -> "ProductIndex | None":
        """Return an empty index of keys of this width, searched by inner product.

        None if the method has no such index, so that the inner products with all keys must be computed.
        """


class VectorIndex(ABC):
    """Base class of indexes: a set of vectors, prepared for searches by distance."""

    @abstractmethod
    def search(self, queries: Float[Tensor, "N D"], k: int) -> SearchResult:
        """Return the k vectors nearest to each query; among equally near ones the first.

        With fewer than k vectors, all of them are found.
        """


def check_queries(queries: Float[Tensor, "N D"], vectors: Vectors) -> Float[Tensor, "N D"]:
    """Return the queries of a vector search in float64 on the CPU, after a check.

    queries: the queries, [N D].
    vectors: the vectors to search.

    Errors: ValueError if their width is not the width of the vectors, if a number is not finite, or if a query has
    length 2^60 or more.
    """
    if queries.dim() != 2 or queries.shape[1] != vectors.width:
        raise ValueError(
            f"search failed: got queries of shape {list(queries.shape)}, expected [N, {vectors.width}]. Give each "
            "query the width of the keys"
        )
    queries = queries.detach().cpu().double()
    if not bool(queries.isfinite().all()):
        raise ValueError("search failed: got a query with NaN or infinity, expected finite numbers. Correct the query")
    if bool((queries.square().sum(1) >= LONG**2).any()):
        raise ValueError(f"search failed: got a query of length 2^60 or more. {SCALE}")
    return queries


class ProductIndex(ABC):
    """Base class of indexes of keys that are added over time and searched by their inner product."""

    @abstractmethod
    def add(self, keys: Float[Tensor, "S K"]) -> None:
        """Append keys; they are numbered in order."""

    @abstractmethod
    def find(self, queries: Float[Tensor, "N K"], k: int) -> Int[Tensor, "N R"]:
        """Return the indices of at least k keys that may have large products with each query.

        If there are fewer keys, all are returned. -1 fills the places of keys that were not found.
        """


def search_named(text: str) -> Search:
    """Return the search method for a text such as "exact", "hnsw" or "ivf:lists=64,probes=4".

    The name is the name of a file in a folder `search`. The numbers are keywords of the `Search` class in that file.

    text: the name of the method, with keywords after a colon.

    Errors: ValueError, in one line, if the name, a keyword or a number is unknown.
    """
    return part_named("search", Search, text)  # type: ignore[type-abstract]
