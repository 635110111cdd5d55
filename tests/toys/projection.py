"""Tied: keys that are values too."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.heads import Keys, Queries
from kinformer.core.projection import Projection, by_head


class Tied(Projection):
    """One matrix for queries, one for keys and values: a cache of half the size."""

    def __init__(self, d: int, heads: int):
        super().__init__()
        self.d, self.heads, self.key_heads = d, heads, heads
        self.k_dim = self.v_dim = d // heads
        self.ask, self.tell = nn.Linear(d, d), nn.Linear(d, d)

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries:
        return Queries(by_head(self.ask(x), self.heads), pos[:, None])

    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys:
        keys = by_head(self.tell(source), self.heads)  # [B H S K]
        return Keys(keys, keys, pos[:, None])


EXAMPLES = (lambda: Tied(16, 2),)
