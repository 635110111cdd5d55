"""SharedQK: one matrix for queries and keys, with keys of unit length."""

import math

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_flag, check_in_range, resolve_head_dim
from kinformer.core.heads import Keys, Queries
from kinformer.core.projection import Projection, by_head
from kinformer.core.unit_vector import unit


class SharedQK(Projection):
    """Projection with one matrix for queries and keys; each key is its query, scaled to unit length.

    k_j = q_j / |q_j|

    Choose it with `LSH` (attention within buckets of a hash), because a token's query and key then fall into the same
    bucket. `Softmax` and its caches work with it too. Each token would give its own key the highest weight. `LSH`
    leaves that key out unless the token reads no other. `Softmax(Causal() & ~Band(0))` always leaves it out.

    d: width of the input.
    heads: number of heads of queries, keys and values.
    head_dim: width of a query, key and value; d / heads by default.
    bias: whether the matrices have biases.
    eps: number added to |q|^2.
    unit: whether keys have unit length; False gives k_j = q_j, the causal form of the Routing Transformer (Roy et al.,
        2020, arXiv:2003.05997). Its mechanism normalises queries and keys.

    Errors: ValueError if the heads do not divide the width.

    Source: Kitaev et al., 2020, arXiv:2001.04451, section 2 ("Where do Q, K, V come from?").
    """

    def __init__(
        self,
        d: int,
        heads: int,
        *,
        head_dim: int | None = None,
        bias: bool = True,
        eps: float = 1e-12,
        unit: bool = True,
    ):
        super().__init__()
        self.d = check_at_least("d", d, 1)
        self.heads = self.key_heads = check_at_least("heads", heads, 1)
        self.k_dim = self.v_dim = width = resolve_head_dim(d, heads, head_dim)
        self.bias, self.eps, self.unit = bias, check_in_range("eps", eps, 0, math.inf), check_flag("unit", unit)
        self.qk = nn.Linear(d, heads * width, bias=bias)
        self.v = nn.Linear(d, heads * width, bias=bias)

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries:
        return Queries(by_head(self.qk(x), self.heads), pos[:, None])

    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys:
        return self._keys(by_head(self.qk(source), self.heads), source, pos)

    def queries_and_keys(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> tuple[Queries, Keys]:
        queries = self.queries(x, pos)
        return queries, self._keys(queries.q, x, pos)

    def matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        linear = {"q": self.qk, "k": self.qk, "v": self.v}[name]
        return linear.weight, linear.bias

    def _keys(self, q: Float[Tensor, "B H S K"], source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys:
        return Keys(unit(q, self.eps) if self.unit else q, by_head(self.v(source), self.heads), pos[:, None])


EXAMPLES = (lambda: SharedQK(16, 2), lambda: SharedQK(16, 4, head_dim=6, bias=False, unit=False))
