"""SharedQK: one matrix for queries and keys; a key is its query at unit length."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.projection import Projection, by_head
from kinformer.core.vectors import unit


class SharedQK(Projection):
    """k_j = q_j / |q_j|: a token is asked for and found by the same vector, so that it hashes into one bucket.

    Choose it with `LSH`; `Softmax` reads under it too, and so do its caches, because the keys are made here and not in
    a mechanism. Under it a token's best key is itself, which `LSH` leaves out and `Softmax(Causal() & ~Band(0))` can.
    `eps` is added to |q|^2. Source: Kitaev et al., 2020, arXiv:2001.04451, section 2 ("Where do Q, K, V come from?").
    """

    def __init__(self, d: int, heads: int, *, head_dim: int | None = None, bias: bool = True, eps: float = 1e-12):
        super().__init__()
        if head_dim is None and d % heads:
            raise ValueError(f"d={d} does not split into heads={heads}; make it a multiple, or give head_dim")
        self.heads = self.key_heads = heads
        self.k_dim = self.v_dim = d // heads if head_dim is None else head_dim
        self.eps = eps
        self.qk = nn.Linear(d, heads * self.k_dim, bias=bias)
        self.v = nn.Linear(d, heads * self.v_dim, bias=bias)

    def queries(self, x: Float[Tensor, "B T D"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B H T K"]:
        return by_head(self.qk(x), self.heads)

    def keys(
        self, source: Float[Tensor, "B S D"], source_pos: Int[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S V"]]:
        q = by_head(self.qk(source), self.heads)
        return unit(q, self.eps), by_head(self.v(source), self.heads)


EXAMPLES = (lambda: SharedQK(16, 2), lambda: SharedQK(16, 4, head_dim=6, bias=False))
