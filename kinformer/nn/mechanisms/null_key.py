"""NullKey: a learned key and value that every query reads beside those of the row."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least
from kinformer.core.heads import Keys

__all__ = ["NullKey"]


class NullKey(nn.Module):
    """A key and a value of each head before all others, at position 0: under `Causal()` a first query reads it too.

    They start at 0.

    heads: heads of keys and of values.
    k_dim, v_dim: the width of a key, and of a value, k_dim unless given.

    Errors: ValueError for keys of other heads and widths, or with extras, of which it has none. Source: the
    memory-compressed-attention package (P. Wang, 2020).
    """

    def __init__(self, heads: int, k_dim: int, v_dim: int | None = None):
        super().__init__()
        shape = check_at_least("heads", heads, 1), check_at_least("k_dim", k_dim, 1)
        self.k = nn.Parameter(torch.zeros(*shape))
        self.v = nn.Parameter(torch.zeros(heads, k_dim if v_dim is None else check_at_least("v_dim", v_dim, 1)))

    def forward(self, keys: Keys) -> Keys:
        """These keys behind it."""
        for name, null_vector, x in (("k", self.k, keys.k), ("v", self.v, keys.v)):
            if (got_shape := (x.shape[1], x.shape[3])) != tuple(null_vector.shape):
                raise ValueError(
                    f"NullKey is of {list(null_vector.shape)} heads and numbers, and {name} of {list(got_shape)} came"
                )
        if keys.extras:
            raise ValueError(f"NullKey has no side, and the mechanism wants {min(keys.extras)!r} of each key; drop it")

        def prepend(null_vector: Tensor, x: Tensor) -> Tensor:
            return torch.cat([null_vector.to(x.dtype)[:, None].expand(len(x), -1, -1, -1), x], 2)

        return keys._replace(k=prepend(self.k, keys.k), v=prepend(self.v, keys.v), pos=F.pad(keys.pos, (1, 0)))
