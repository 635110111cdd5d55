"""PairMap: a change of all scores, or of all weights, at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.request import Request


class PairMap(nn.Module, ABC):
    """A change of the scores before the softmax, or of the weights after it, for all pairs.

    The `mask` of `forward` is True at the pairs that are read; None means all. Other entries have no meaning (a bias
    may have set them to -inf), and their results have no effect. The number of heads may change.

    by_query: a promise that the result for one query depends on no other query. Long rows are then read in blocks of
        queries.
    """

    by_query: bool = False

    def bind(self, request: Request) -> Callable[..., Float[Tensor, "B M T S"]]:
        """Return the map for the scores of a request.

        Override it if the map needs the queries and keys behind the scores.
        """
        return self

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B H T S"], mask: Bool[Tensor, "#B #H T S"] | None
    ) -> Float[Tensor, "B M T S"]: ...
