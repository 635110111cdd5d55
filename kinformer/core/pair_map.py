"""PairMap: a change of all scores, or of all weights, at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.request import Request


class PairMap(nn.Module, ABC):
    """A change of the scores before the softmax, or of the weights after it, for every pair of query and key.

    `mask` says which pairs are read, None that all are; the others hold numbers without a meaning (a bias may have made
    them -inf), and what becomes of them has no effect. The number of heads may change. `by_query` promises that what
    becomes of a query's pairs depends on no other query's: long rows are then read in blocks of queries.
    """

    by_query: bool = False

    def bind(self, request: Request) -> Callable[..., Float[Tensor, "B M T S"]]:
        """The map for the scores of a request. Override it if the map needs the queries and keys behind the scores."""
        return self

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B H T S"], mask: Bool[Tensor, "#B #H T S"] | None
    ) -> Float[Tensor, "B M T S"]: ...
