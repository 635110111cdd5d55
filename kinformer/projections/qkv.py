"""QKV: three matrices; with fewer key heads than query heads, grouped or multi-query attention."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.projection import Projection, by_head
from kinformer.positions.rotary import Rotary


class QKV(Projection):
    """Linear queries, keys and values.

    `key_heads` fewer than `heads` shares each key head among heads / key_heads query heads.

    One key head is multi-query attention: the cache shrinks by the number of heads, at little cost in quality.
    `head_dim` need not be d / heads. Source: Vaswani et al., 2017, arXiv:1706.03762; multi-query: Shazeer, 2019,
    arXiv:1911.02150; groups: Ainslie et al., 2023, arXiv:2305.13245; free head_dim: Bhojanapalli et al., 2020,
    arXiv:2002.07028.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        *,
        key_heads: int | None = None,
        head_dim: int | None = None,
        rotary: Rotary | None = None,
        bias: bool = True,
    ):
        super().__init__()
        if head_dim is None and d % heads:
            raise ValueError(f"d={d} does not split into heads={heads}; make it a multiple, or give head_dim")
        self.heads, self.key_heads = heads, heads if key_heads is None else key_heads
        if self.heads % self.key_heads:
            raise ValueError(
                f"heads={heads} is not a multiple of key_heads={key_heads}; each key head serves equally many heads"
            )
        self.k_dim = self.v_dim = d // heads if head_dim is None else head_dim
        self.q = nn.Linear(d, self.heads * self.k_dim, bias=bias)
        self.k = nn.Linear(d, self.key_heads * self.k_dim, bias=bias)
        self.v = nn.Linear(d, self.key_heads * self.v_dim, bias=bias)
        self.rotary = rotary

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B H T K"]:
        q = by_head(self.q(x), self.heads)
        return q if self.rotary is None else self.rotary(q, pos)

    def keys(
        self, source: Float[Tensor, "B S D"], source_pos: Int[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S V"]]:
        k = by_head(self.k(source), self.key_heads)
        v = by_head(self.v(source), self.key_heads)
        return (k if self.rotary is None else self.rotary(k, source_pos)), v


EXAMPLES = (
    lambda: QKV(16, 2),
    lambda: QKV(16, 4, key_heads=2, head_dim=6, bias=False),
    lambda: QKV(16, 4, key_heads=1, rotary=Rotary(4)),
)
