"""Neighbours: what a search for the nearest keys gives; Store: keys and the tokens that followed, to be searched."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.checks import at_least

NUMBERS = 1 << 22  # differences of queries and keys that are held at a time


class Neighbours(NamedTuple):
    """The entries nearest to each query, nearest first; of a store with fewer all, or -1 and inf.

    distances: squared L2. tokens: their values, what followed in the text. places: their numbers in the store.
    """

    distances: Float[Tensor, "*A k"]
    tokens: Int[Tensor, "*A k"]
    places: Int[Tensor, "*A k"]


class Store(ABC):
    """Keys with the token that followed each, which can be searched."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers a key has."""

    @abstractmethod
    def values(self) -> Int[Tensor, " N"]:
        """The token that followed each key, in the order of the text."""

    @abstractmethod
    def search(self, queries: Float[Tensor, "N d"], k: int) -> Neighbours:
        """The `k` entries whose keys are nearest to each query; those in lower places first among equals."""

    def of_tokens(self, states: Float[Tensor, "B T d"], real: Bool[Tensor, "B T"], k: int) -> Neighbours:
        """The `k` entries nearest to the state of each real token; -1 and inf for padding, which is not searched."""
        found = self.search(states[real], k)

        def laid_out(one: Tensor, none: float) -> Tensor:
            return one.new_full((*real.shape, one.shape[-1]), none).index_put((real.to(one.device),), one)

        parts = zip(found, (torch.inf, -1, -1), strict=True)
        return Neighbours(*(laid_out(one, none).to(states.device) for one, none in parts))


class Entries(Store):
    """A store that is held in memory and searched by all distances.

    Choose it for some thousands of entries that are at hand as tensors; a `Datastore` for those of a corpus.

    keys: inner states of a model.
    tokens: what followed each.

    Errors: ValueError for keys and tokens of different numbers, k below 1, queries of another width or not finite.
    """

    def __init__(self, keys: Float[Tensor, "N d"], tokens: Int[Tensor, " N"]):
        if len(keys) != len(tokens):
            raise ValueError(f"{len(keys)} keys and {len(tokens)} tokens came; give each key the token that followed")
        self.keys, self.tokens = keys, tokens

    @property
    def width(self) -> int:
        return self.keys.shape[1]

    def values(self) -> Int[Tensor, " N"]:
        return self.tokens

    def search(self, queries: Float[Tensor, "M d"], k: int) -> Neighbours:
        at_least("k", k, 1)
        if queries.dim() != 2 or queries.shape[1] != self.width or not bool(queries.isfinite().all()):
            raise ValueError(
                f"queries of shape {list(queries.shape)} came; give [M, {self.width}], as wide as the keys, all finite"
            )
        queries = queries.to(torch.promote_types(queries.dtype, torch.float32))
        size = max(1, NUMBERS // max(self.keys.numel(), 1))
        found = [self._nearest(some, k) for some in queries.split(size)]
        distances, places = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Neighbours(distances, self.tokens.to(places.device)[places], places)

    def _nearest(self, queries: Float[Tensor, "M d"], k: int) -> tuple[Float[Tensor, "M k"], Int[Tensor, "M k"]]:
        keys = self.keys.to(queries)
        away = (queries[:, None] - keys).square().sum(-1)  # differences first: equal keys are 0 away, not nearly
        distances, places = away.sort(dim=-1, stable=True)
        return distances[:, :k], places[:, :k]
