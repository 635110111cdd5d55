"""NullKey: a learned key and value that every query reads in addition to the row."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least
from kinformer.core.heads import Keys
from kinformer.core.keyword_hints import KeywordHints

__all__ = ["NullKey"]


class NullKey(nn.Module, KeywordHints):
    """Learned key and value for each head at position 0, before all others.

    Both start at 0. Under `Causal()` the first query reads them too.

    heads: number of heads of keys and values.
    k_dim, v_dim: width of a key, and of a value; v_dim is k_dim by default.

    Errors: ValueError for keys with other heads or widths, or with extra projections, which a null key does not have.

    Source: the memory-compressed-attention package (P. Wang, 2020).
    """

    def __init__(self, heads: int, k_dim: int, v_dim: int | None = None):
        super().__init__()
        shape = check_at_least("heads", heads, 1), check_at_least("k_dim", k_dim, 1)
        self.k = nn.Parameter(torch.zeros(*shape))
        self.v = nn.Parameter(torch.zeros(heads, k_dim if v_dim is None else check_at_least("v_dim", v_dim, 1)))

    def forward(self, keys: Keys) -> Keys:
        """Return the keys with the null key in front."""
        for name, null_vector, x in (("k", self.k, keys.k), ("v", self.v, keys.v)):
            if (got_shape := (x.shape[1], x.shape[3])) != tuple(null_vector.shape):
                raise ValueError(
                    f"NullKey was made for heads and widths {list(null_vector.shape)}, but got {name} of "
                    f"{list(got_shape)}"
                )
        if keys.extras:
            raise ValueError(
                f"NullKey has no extra projection, but the mechanism needs {min(keys.extras)!r} of each key. Drop "
                "NullKey"
            )

        def prepend(null_vector: Tensor, x: Tensor) -> Tensor:
            return torch.cat([null_vector.to(x.dtype)[:, None].expand(len(x), -1, -1, -1), x], 2)

        return keys._replace(k=prepend(self.k, keys.k), v=prepend(self.v, keys.v), pos=F.pad(keys.pos, (1, 0)))
