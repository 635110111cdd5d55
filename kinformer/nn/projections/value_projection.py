"""ValueProjection: values by head, without queries and keys."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_flag, check_multiple, check_option, resolve_head_dim
from kinformer.core.heads import Keys, Queries
from kinformer.core.projection import Projection, by_head


class ValueProjection(Projection):
    """Projection to values by head, v = W x + b, with queries and keys of width 0.

        Attention(ValueProjection(d, heads), Softmax(pattern, score=RandomSynthesizer(heads, length)))

    Choose it if the scores do not depend on queries and keys, as with `RandomSynthesizer` (a table of scores by
    position). With a plain `Softmax` all keys get equal weights. The cache stores only values.

    d: width of the input.
    heads: number of query heads.
    value_heads: number of value heads, each shared by heads / value_heads query heads; `heads` by default.
    v_dim: width of a value; d / heads by default.
    bias: whether the matrix has a bias.

    Errors: ValueError if sizes do not divide.

    Source: the value function G in Tay et al., 2020, arXiv:2005.00743, section 3.1.
    """

    k_dim = 0

    def __init__(
        self, d: int, heads: int, *, value_heads: int | None = None, v_dim: int | None = None, bias: bool = True
    ):
        super().__init__()
        self.d, self.heads = check_at_least("d", d, 1), check_at_least("heads", heads, 1)
        self.key_heads = heads if value_heads is None else check_at_least("value_heads", value_heads, 1)
        check_multiple("heads", heads, "value_heads", self.key_heads)
        self.v_dim, self.bias = resolve_head_dim(d, heads, v_dim), check_flag("bias", bias)
        self.v = nn.Linear(d, self.key_heads * self.v_dim, bias=bias)

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Queries:
        return Queries(x.new_zeros(len(x), self.heads, x.shape[1], 0), pos[:, None])

    def keys(self, source: Float[Tensor, "B S D"], pos: Int[Tensor, "B S"]) -> Keys:
        value = by_head(self.v(source), self.key_heads)
        return Keys(value[..., :0], value, pos[:, None])

    def matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        if check_option("name", name, ("q", "k", "v")) != "v":
            return super().matrix(name)
        return self.v.weight, self.v.bias


EXAMPLES = (lambda: ValueProjection(16, 2), lambda: ValueProjection(16, 4, value_heads=2, v_dim=6, bias=False))
