"""PairMap: a change of the scores, or the attention weights, of all pairs at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.request import Request


class PairMap(nn.Module, KeywordHints, ABC):
    """Base class: a change of all scores before the softmax, or of all attention weights after it.

    A subclass writes `forward`, which returns the changed scores or weights. Its `mask` is True at the pairs of query
    and key that attention allows; None means all. The scores of other pairs have no meaning (a bias may have set them
    to -inf), and their results have no effect. The number of heads may change.

    by_query: a promise that the result for one query depends on no other query. Long rows are then computed in blocks
        of queries.
    """

    by_query: bool = False

    def bind(self, request: Request) -> Callable[..., Float[Tensor, "B M T S"]]:
        """Return the map for the scores of one attention call.

        Override it if the map needs the queries and keys of the call.
        """
        return self

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "B H T S"], mask: Bool[Tensor, "#B #H T S"] | None
    ) -> Float[Tensor, "B M T S"]: ...
