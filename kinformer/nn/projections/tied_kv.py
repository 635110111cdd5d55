"""TiedKV: one matrix for keys and values."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_flag, check_option, resolve_head_dim
from kinformer.core.heads import Keys, Queries
from kinformer.core.projection import Projection, by_head


class TiedKV(Projection):
    """Projection with one matrix for keys and values; each key is its value.

    k_j = v_j = W_c x_j

    It has a third fewer weights than `QKV`. Choose it for Luna (nested attention through a few summary vectors) as in
    its authors' training. Without it, Luna's two attentions have twice the weights of one attention.

    d: width of the input.
    heads: number of heads of queries, keys and values.
    head_dim: width of a query, key and value; d / heads by default.
    bias: whether the matrices have biases.

    Errors: ValueError if the heads do not divide the width.

    Source: Ma et al., 2021, arXiv:2106.01540, and its code.
    """

    def __init__(self, d: int, heads: int, *, head_dim: int | None = None, bias: bool = True):
        super().__init__()
        self.d = check_at_least("d", d, 1)
        self.heads = self.key_heads = check_at_least("heads", heads, 1)
        self.k_dim = self.v_dim = width = resolve_head_dim(d, heads, head_dim)
        self.bias = check_flag("bias", bias)
        self.q, self.c = nn.Linear(d, heads * width, bias=bias), nn.Linear(d, heads * width, bias=bias)

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries:
        return Queries(by_head(self.q(x), self.heads), pos[:, None])

    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys:
        shared = by_head(self.c(source), self.heads)
        return Keys(shared, shared, pos[:, None])

    def matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        linear = self.q if check_option("name", name, ("q", "k", "v")) == "q" else self.c
        return linear.weight, linear.bias


EXAMPLES = (lambda: TiedKV(16, 2), lambda: TiedKV(16, 4, head_dim=6, bias=False))
