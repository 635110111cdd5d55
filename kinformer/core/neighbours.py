"""Neighbours, the result of a search for nearest keys, and Store, keys with the tokens after them."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.checks import check_at_least

NUMBERS = 1 << 22  # the largest number of differences between queries and keys in memory


class Neighbours(NamedTuple):
    """The k entries of a `Store` with the keys nearest to each query, nearest first.

    A store with fewer entries returns all of them, or fills the remaining places with token -1 and distance inf.

    distances: squared L2 distances.
    tokens: the token that followed each key.
    places: the indices of the entries in the store.
    """

    distances: Float[Tensor, "*A k"]
    tokens: Int[Tensor, "*A k"]
    places: Int[Tensor, "*A k"]


class Store(ABC):
    """Base class of stores: keys that can be searched, each with the token that followed it in a text."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of coordinates of a key."""

    @abstractmethod
    def values(self) -> Int[Tensor, " N"]:
        """Return the token that followed each key, in the order of the text."""

    @abstractmethod
    def search(self, queries: Float[Tensor, "N d"], k: int) -> Neighbours:
        """Return the `k` entries with keys nearest to each query; among equally near keys the first ones."""

    def of_tokens(self, states: Float[Tensor, "B T d"], real: Bool[Tensor, "B T"], k: int) -> Neighbours:
        """Return the `k` entries nearest to the hidden state of each real token.

        Padding is not searched: its results are token -1 and distance inf.
        """
        neighbours = self.search(states[real], k)

        def laid_out(values: Tensor, empty: float) -> Tensor:
            return values.new_full((*real.shape, values.shape[-1]), empty).index_put((real.to(values.device),), values)

        parts = zip(neighbours, (torch.inf, -1, -1), strict=True)
        return Neighbours(*(laid_out(values, empty).to(states.device) for values, empty in parts))


class Entries(Store):
    """A store in memory that computes all distances.

    Choose it for some thousands of entries in tensors, and a `Datastore` for the entries of a corpus.

    keys: hidden states of a model.
    tokens: the token that followed each key.

    Errors: ValueError if the numbers of tokens and keys differ. `search` raises it too, if its k is below 1, or if its
    queries have another width than the keys or are not finite.
    """

    def __init__(self, keys: Float[Tensor, "N d"], tokens: Int[Tensor, " N"]):
        if len(keys) != len(tokens):
            raise ValueError(f"got {len(keys)} keys and {len(tokens)} tokens; give the token that follows each key")
        self.keys, self.tokens = keys, tokens

    @property
    def width(self) -> int:
        return self.keys.shape[1]

    def values(self) -> Int[Tensor, " N"]:
        return self.tokens

    def search(self, queries: Float[Tensor, "M d"], k: int) -> Neighbours:
        check_at_least("k", k, 1)
        if queries.dim() != 2 or queries.shape[1] != self.width or not bool(queries.isfinite().all()):
            raise ValueError(
                f"got queries of shape {list(queries.shape)}, expected finite numbers of shape [M, {self.width}], as "
                "wide as the keys"
            )
        queries = queries.to(torch.promote_types(queries.dtype, torch.float32))
        size = max(1, NUMBERS // max(self.keys.numel(), 1))
        nearest = [self._find_nearest(chunk, k) for chunk in queries.split(size)]
        distances, places = (torch.cat(parts) for parts in zip(*nearest, strict=True))
        return Neighbours(distances, self.tokens.to(places.device)[places], places)

    def _find_nearest(self, queries: Float[Tensor, "M d"], k: int) -> tuple[Float[Tensor, "M k"], Int[Tensor, "M k"]]:
        keys = self.keys.to(queries)
        # from differences, not products, so that the distance of equal vectors is exactly 0
        distances, places = (queries[:, None] - keys).square().sum(-1).sort(dim=-1, stable=True)
        return distances[:, :k], places[:, :k]
