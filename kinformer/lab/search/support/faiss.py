"""FAISS: indices that find candidates, which are then ranked by exact distances."""

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
    """The package FAISS; ValueError, in one line, if it is not installed."""
    try:
        import faiss
    except ImportError as missing:
        raise ValueError(
            f"search {name!r} wants a package that is not installed ({missing}): pip install 'kinformer[faiss]', or "
            "use 'exact'"
        ) from missing
    return faiss


class FaissSearch(Search):
    """A search by an index of FAISS in memory. candidates: number per result. learns: whether the index is trained."""

    candidates: ClassVar[int] = 1
    learns: ClassVar[bool] = False

    @abstractmethod
    def factory(self, count: int, width: int) -> str:
        """The text from which FAISS makes an index of `count` vectors; ValueError if that is impossible."""

    def search_parameters(self, index: Any, k: int) -> Any:
        """Parameters of one FAISS call for k candidates; not set on the index, because searches may run in parallel."""
        return None

    @property
    def name(self) -> str:
        """The name in error messages and on the command line."""
        return type(self).__module__.rpartition(".")[2]

    def make_index(self, count: int, width: int, *, products: bool = False) -> Any:
        """An empty FAISS index by distance or by inner product; ValueError if FAISS cannot make it.

        By inner product, an index that needs training is flat as long as it has too few vectors.
        """
        faiss = package(self.name)
        flat = products and self.learns and 0 < count < FEWEST
        try:
            metric = faiss.METRIC_INNER_PRODUCT if products else faiss.METRIC_L2
            return faiss.index_factory(width, "Flat" if flat else self.factory(count, width), metric)
        except RuntimeError as error:
            raise ValueError(f"{self} makes no index of vectors of width {width}; give other numbers") from error

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
    """An index of FAISS over vectors, whose candidates are ranked by exact distances."""

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
        """The content of a FAISS index file."""
        data: bytes = package(self.method.name).serialize_index(self.faiss).tobytes()
        return data

    @classmethod
    def from_bytes(cls, method: FaissSearch, vectors: Vectors, data: bytes) -> "FaissIndex":
        """Read an index file; ValueError if it is damaged or belongs to other vectors."""
        try:
            index = package(method.name).deserialize_index(numpy.frombuffer(data, numpy.uint8))
        except RuntimeError as error:
            raise ValueError(f"it is no index that FAISS reads: {str(error).splitlines()[0]}") from error
        if (index.ntotal, index.d) != (vectors.count, vectors.width):
            raise ValueError(f"it is of {index.ntotal:,} vectors of width {index.d}, and others are there")
        return cls(method, vectors, index)


class FaissProductIndex(ProductIndex):
    """An index by inner product to which keys are added; it is trained again after it has grown."""

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
    """The number of lists of an index of `count` vectors: as given, or about the square root of `count`."""
    max_lists = max(count // ENOUGH, 1)
    return min(round(count**0.5) or 1, max_lists) if lists is None else min(lists, max_lists)


def _rows(x: Float[Tensor, "n D"]) -> numpy.ndarray:
    """Vectors as FAISS expects them; ValueError for numbers at which the threads of FAISS would end the process."""
    rows: numpy.ndarray = x.detach().float().cpu().contiguous().numpy()
    if not bool((numpy.abs(rows) < LONG / max(rows.shape[1], 1) ** 0.5).all()):  # NaN is not
        raise ValueError(
            "a vector holds NaN or infinity, or is longer than 2^60, and FAISS cannot index it; mend it (a damaged "
            "datastore: build it again), or use 'exact', which ignores vectors with NaN or infinity"
        )
    return rows
