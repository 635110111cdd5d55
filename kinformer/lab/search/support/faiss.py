"""FAISS: base class of searches by its indices, which only select candidates for exact ranking."""

from abc import abstractmethod
from types import ModuleType
from typing import Any, ClassVar

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_at_least
from kinformer.core.search import (
    LONG,
    ProductIndex,
    Search,
    SearchResult,
    VectorIndex,
    Vectors,
    check_queries,
    evenly_spaced,
)
from kinformer.nn.search.exact import rank_candidates

SAMPLE = 64  # vectors per centre in training, at most
ENOUGH = 39  # vectors per centre in training, at least; FAISS warns below
CODES = 256  # centres of a code of 8 bits
FEWEST = 16 * ENOUGH  # vectors in training of a code of 4 bits, at least
GROWN = 4  # an index is trained again after its vectors have grown by this factor


def package(name: str) -> ModuleType:
    """Return the package FAISS.

    name: name of the search, for the message.

    Errors: ValueError, in one line, if it is not installed.
    """
    try:
        import faiss
    except ImportError as missing:
        raise ValueError(
            f"search {name!r} needs a package that is not installed ({missing}): run `pip install '.[faiss]'` in "
            "kinformer's folder, or "
            "use 'exact'"
        ) from missing
    return faiss


class FaissSearch(Search):
    """Base class of a search by an index of FAISS in memory; a subclass supplies `factory`.

    candidates: number of candidates that the index selects per requested vector.
    learns: True if the index is trained on vectors, for example to find centres.
    """

    candidates: ClassVar[int] = 1
    learns: ClassVar[bool] = False

    @abstractmethod
    def factory(self, count: int, width: int) -> str:
        """Return the description of an index in FAISS's form, such as "HNSW32".

        count: number of vectors that the index will hold.
        width: numbers in a vector.

        Errors: ValueError if there is no such index.
        """

    def search_parameters(self, index: Any, k: int) -> Any:
        """Return the parameters of one call of FAISS for `k` candidates.

        They are not set on the index, because searches may run in parallel. None takes FAISS's defaults.
        """
        return None

    @property
    def name(self) -> str:
        """Name of the search in messages and on the command line."""
        return type(self).__module__.rpartition(".")[2]

    def make_index(self, count: int, width: int, *, products: bool = False) -> Any:
        """Return an empty index of FAISS.

        count: number of vectors that it will hold.
        width: numbers in a vector.
        products: True searches by inner product, False by distance. An index by inner product that needs training
            compares all vectors as long as it has too few of them for training.

        Errors: ValueError if FAISS cannot make the index.
        """
        faiss = package(self.name)
        flat = products and self.learns and 0 < count < FEWEST
        try:
            metric = faiss.METRIC_INNER_PRODUCT if products else faiss.METRIC_L2
            return faiss.index_factory(width, "Flat" if flat else self.factory(count, width), metric)
        except RuntimeError as error:
            raise ValueError(f"{self} cannot index vectors of width {width}; give other sizes") from error

    def index(self, vectors: Vectors) -> "FaissIndex":
        index = self.make_index(vectors.count, vectors.width)
        if vectors.count and not index.is_trained:
            size = SAMPLE * max(int(getattr(index, "nlist", 0)), CODES)
            index.train(_rows(vectors.at(evenly_spaced(vectors.count, size))))
        for _, block in vectors.blocks():
            index.add(_rows(block))
        return FaissIndex(self, vectors, index)

    def product_index(self, width: int) -> "FaissProductIndex":
        return FaissProductIndex(self, width)


class FaissIndex(VectorIndex):
    """A search index of FAISS over vectors; its candidates are ranked by exact distances.

    method: the search that made the index.
    vectors: the vectors.
    index: the index of FAISS.
    """

    def __init__(self, method: FaissSearch, vectors: Vectors, index: Any):
        self.method, self.vectors, self.faiss = method, vectors, index

    @torch.no_grad()
    def search(self, queries: Float[Tensor, "N D"], k: int) -> SearchResult:
        queries, k = check_queries(queries, self.vectors), min(check_at_least("k", k, 1), self.vectors.count)
        if not len(queries) or not k:
            return rank_candidates(self.vectors, queries, queries.new_empty(len(queries), k, dtype=torch.long), k)
        count = min(self.method.candidates * k, self.vectors.count)
        parameters = self.method.search_parameters(self.faiss, count)
        candidates = torch.from_numpy(self.faiss.search(queries.float().numpy(), count, params=parameters)[1])
        return rank_candidates(self.vectors, queries, candidates, k)

    def to_bytes(self) -> bytes:
        """Return the content of a FAISS index file."""
        data: bytes = package(self.method.name).serialize_index(self.faiss).tobytes()
        return data

    @classmethod
    def from_bytes(cls, method: FaissSearch, vectors: Vectors, data: bytes) -> "FaissIndex":
        """Return the index in the content of an index file.

        method: the search that made the index.
        vectors: the vectors of the index.
        data: content of the file.

        Errors: ValueError if the content is damaged or belongs to other vectors.
        """
        try:
            index = package(method.name).deserialize_index(numpy.frombuffer(data, numpy.uint8))
        except RuntimeError as error:
            raise ValueError(f"FAISS cannot read the index: {str(error).splitlines()[0]}") from error
        if (index.ntotal, index.d) != (vectors.count, vectors.width):
            raise ValueError(f"the index has {index.ntotal:,} vectors of width {index.d}, unlike the datastore")
        return cls(method, vectors, index)


class FaissProductIndex(ProductIndex):
    """A search index of FAISS for the largest inner products; keys can be added to it.

    An index that needs training is trained again after it has grown by a factor of 4.

    method: the search that makes the index.
    width: numbers in a key.
    """

    def __init__(self, method: FaissSearch, width: int):
        self.method, self.width, self.faiss = method, width, method.make_index(0, width, products=True)
        self.rows: list[numpy.ndarray] = []
        self.count, self.trained_count = 0, 0

    def add(self, keys: Float[Tensor, "S K"]) -> None:
        rows = _rows(keys)
        self.count += len(rows)
        if self.method.learns:
            self.rows.append(rows)
            if self.count >= GROWN * self.trained_count:
                self.trained_count = self.count
                self.faiss = self.method.make_index(self.count, self.width, products=True)
                rows = numpy.concatenate(self.rows)
                self.faiss.train(rows)
        self.faiss.add(rows)

    def find(self, queries: Float[Tensor, "N K"], k: int) -> Int[Tensor, "N R"]:
        count = min(self.method.candidates * k, self.count)
        is_flat = self.method.learns and not hasattr(self.faiss, "nlist")
        parameters = None if is_flat else self.method.search_parameters(self.faiss, count)
        return torch.from_numpy(self.faiss.search(_rows(queries), count, params=parameters)[1]).to(queries.device)


def number_of_lists(lists: int | None, count: int) -> int:
    """Return the number of lists of an `IVF` index: at most one for 39 vectors, to train its centre.

    lists: number that the user requested; None takes about the square root of `count`.
    count: number of vectors.
    """
    max_lists = max(count // ENOUGH, 1)
    return min(round(count**0.5) or 1, max_lists) if lists is None else min(lists, max_lists)


def _rows(x: Float[Tensor, "n D"]) -> numpy.ndarray:
    """Return vectors as FAISS expects them; refuse numbers at which threads of FAISS would end the process."""
    rows: numpy.ndarray = x.detach().float().cpu().contiguous().numpy()
    if not bool((numpy.abs(rows) < LONG / max(rows.shape[1], 1) ** 0.5).all()):  # False for NaN
        raise ValueError(
            "FAISS cannot index a vector that contains NaN or infinity, or that is longer than 2^60; correct the "
            "vector (build a damaged datastore again), or use 'exact', which ignores vectors with NaN or infinity"
        )
    return rows
