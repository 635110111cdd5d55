"""ValueProjection: a projection for attention that compares nothing: values, and queries and keys of no width."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_flag, check_option, resolve_head_dim
from kinformer.core.heads import Keys, Queries, number_of_groups
from kinformer.core.projection import Projection, by_head


class ValueProjection(Projection):
    """v = W x + b for each head, and neither queries nor keys: choose it where scores come from something else.

    `Attention(ValueProjection(d, heads), Softmax(pattern, score=RandomSynthesizer(heads, length)))`. Under a plain
    `Softmax` every key counts alike. Its cache keeps values alone.

    d: the width of what is projected.
    heads: heads that read.
    value_heads: heads of values, each shared by heads / value_heads that read; `heads` unless given.
    v_dim: the width of a value, d / heads unless given.
    bias: whether the matrix has one.

    Errors: ValueError for sizes that do not divide. Source: G in Tay et al., 2020, arXiv:2005.00743, section 3.1.
    """

    k_dim = 0

    def __init__(
        self, d: int, heads: int, *, value_heads: int | None = None, v_dim: int | None = None, bias: bool = True
    ):
        super().__init__()
        self.d, self.heads = check_at_least("d", d, 1), check_at_least("heads", heads, 1)
        self.key_heads = heads if value_heads is None else check_at_least("value_heads", value_heads, 1)
        number_of_groups(heads, self.key_heads, "value heads")
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
