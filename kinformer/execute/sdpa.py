"""PyTorch's scaled_dot_product_attention as an executor: for patterns without a bias, where no lse is wanted."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.pattern import Pattern
from kinformer.core.read import Read
from kinformer.core.scores import allowed


def attend(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S V"],
    *,
    q_pos: Int[Tensor, "B #H T"],
    k_pos: Int[Tensor, "B #H S"],
    pattern: Pattern,
    scale: float | None = None,
    dropout: float = 0.0,
    rows: Int[Tensor, " B"] | None = None,
) -> Read:
    """The same y as the reference; its lse is None, because the public function returns none."""
    mask = allowed(pattern, q.shape[1], q_pos, k_pos, rows)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=True)
    return Read(y, None)
