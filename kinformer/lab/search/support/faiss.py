"""FAISS: indices that find candidates, whose distances are then computed exactly."""

from abc import abstractmethod
from types import ModuleType
from typing import Any, ClassVar

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import at_least
from kinformer.core.search import LONG, ProductIndex, Search, SearchResult, VectorIndex, Vectors, check_queries, spread
from kinformer.nn.search.exact import rank_candidates

SAMPLE = 64  # vectors that a centre is learned from, at most
ENOUGH = 39  # vectors that a centre should have been learned from, as FAISS wants
CODES = 256  # centres of a code of eight bits
FEWEST = 16 * ENOUGH  # vectors from which codes of four bits are learned
GROWN = 4  # so many times as many vectors, and what was learned is learned anew


def package(name: str) -> ModuleType:
    """FAISS; ValueError of one line where it is not installed."""
    try:
        import faiss
    except ImportError as missing:
        raise ValueError(
            f"search {name!r} wants a package that is not installed ({missing}): pip install 'kinformer[faiss]', or "
            "use 'exact'"
        ) from missing
    return faiss


class FaissSearch(Search):
    """A search by an index of FAISS, held in memory. `more`: candidates that are asked for, for each that is wanted."""

    more: ClassVar[int] = 1
    learns: ClassVar[bool] = False

    @abstractmethod
    def factory(self, count: int, width: int) -> str:
        """The text by which FAISS makes the index of so many vectors; ValueError for what cannot be."""

    def thoroughly(self, index: Any, k: int) -> Any:
        """How thoroughly k are looked for, as FAISS takes it with a call: searches at a time may want different k."""
        return None

    @property
    def name(self) -> str:
        """How errors call it."""
        return type(self).__module__.rpartition(".")[2]

    def made(self, count: int, width: int, *, products: bool = False) -> Any:
        """An empty index, by distance or by inner product; ValueError where FAISS makes none.

        By inner product few are all looked at, where an index would have to learn.
        """
        faiss = package(self.name)
        flat = products and self.learns and 0 < count < FEWEST
        try:
            metric = faiss.METRIC_INNER_PRODUCT if products else faiss.METRIC_L2
            return faiss.index_factory(width, "Flat" if flat else self.factory(count, width), metric)
        except RuntimeError as error:
            raise ValueError(f"{self} makes no index of vectors of width {width}; give other numbers") from error

    def index(self, vectors: Vectors) -> "FaissIndex":
        index = self.made(vectors.count, vectors.width)
        if vectors.count and not index.is_trained:
            size = SAMPLE * max(int(getattr(index, "nlist", 0)), CODES)
            index.train(_rows(vectors.at(spread(vectors.count, size))))
        for _, block in vectors.blocks():
            index.add(_rows(block))
        return FaissIndex(self, vectors, index)

    def product_index(self, width: int) -> "FaissProductIndex":
        return FaissProductIndex(self, width)


class FaissIndex(VectorIndex):
    """An index of FAISS over vectors; what it finds is put in order by exact distances."""

    def __init__(self, by: FaissSearch, vectors: Vectors, index: Any):
        self.by, self.vectors, self.faiss = by, vectors, index

    @torch.no_grad()
    def search(self, queries: Float[Tensor, "N D"], k: int) -> SearchResult:
        queries, k = check_queries(queries, self.vectors), min(at_least("k", k, 1), self.vectors.count)
        if not len(queries) or not k:
            places = torch.empty(len(queries), k, dtype=torch.long, device="cpu")
            return SearchResult(queries.new_empty(len(queries), k, dtype=torch.float64), places)
        wide = min(self.by.more * k, self.vectors.count)
        how = self.by.thoroughly(self.faiss, wide)
        found = torch.from_numpy(self.faiss.search(queries.float().numpy(), wide, params=how)[1])
        return rank_candidates(self.vectors, queries, found, k)

    def written(self) -> bytes:
        """The index as FAISS keeps it in a file."""
        data: bytes = package(self.by.name).serialize_index(self.faiss).tobytes()
        return data

    @classmethod
    def read(cls, by: FaissSearch, vectors: Vectors, data: bytes) -> "FaissIndex":
        """An index that was written; ValueError for what is none, or one of other vectors."""
        try:
            index = package(by.name).deserialize_index(numpy.frombuffer(data, numpy.uint8))
        except RuntimeError as error:
            raise ValueError(f"it is no index that FAISS reads: {str(error).splitlines()[0]}") from error
        if (index.ntotal, index.d) != (vectors.count, vectors.width):
            raise ValueError(f"it is of {index.ntotal:,} vectors of width {index.d}, and others are there")
        return cls(by, vectors, index)


class FaissProductIndex(ProductIndex):
    """An index by inner product to which keys are added; what it learned of few it learns again of many."""

    def __init__(self, by: FaissSearch, width: int):
        self.by, self.width, self.faiss = by, width, by.made(0, width, products=True)
        self.rows: list[numpy.ndarray] = []
        self.count, self.learned = 0, 0

    def add(self, keys: Float[Tensor, "S K"]) -> None:
        rows = _rows(keys)
        self.count += len(rows)
        if self.by.learns:
            self.rows.append(rows)
            if self.count >= GROWN * self.learned:
                self.learned, self.faiss = self.count, self.by.made(self.count, self.width, products=True)
                rows = numpy.concatenate(self.rows)
                self.faiss.train(rows)
        self.faiss.add(rows)

    def find(self, queries: Float[Tensor, "N K"], k: int) -> Int[Tensor, "N R"]:
        wide = min(self.by.more * k, self.count)
        how = self.by.thoroughly(self.faiss, wide) if hasattr(self.faiss, "nlist") or not self.by.learns else None
        return torch.from_numpy(self.faiss.search(_rows(queries), wide, params=how)[1]).to(queries.device)


def lists_of(lists: int | None, count: int) -> int:
    """How many lists so many vectors are shared among: as given, or about their square root."""
    most = max(count // ENOUGH, 1)
    return min(round(count**0.5) or 1, most) if lists is None else min(lists, most)


def _rows(x: Float[Tensor, "n D"]) -> numpy.ndarray:
    """Vectors as FAISS takes them; ValueError for those by which its own threads would end the process."""
    rows: numpy.ndarray = x.detach().float().cpu().contiguous().numpy()
    if not bool((numpy.abs(rows) < LONG / max(rows.shape[1], 1) ** 0.5).all()):  # NaN is not
        raise ValueError(
            "a vector holds NaN or infinity, or is longer than 2^60, of which FAISS makes no index; mend it (a damaged "
            "datastore: build it again), or use 'exact', which passes over what is no number"
        )
    return rows
