"""Stairs: causal attention over keys at each few positions, as causal attention of rows that much shorter."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.heads import Keys, Queries
from kinformer.core.read import Read


class Stairs:
    """Queries at 0, 1, .. that read the first floor((i + 1) / size) keys, or one more with a null key.

    Each `size` queries in a row read the same keys, and the next ones one more. The first of each, the second of each
    and so on are heads of their own, which read under a plain `Causal()`: the fused kernels need no mask for that, and
    leave out the half that is not read.
    """

    def __init__(self, length: int, size: int, null: bool):
        self.length, self.size = length, size
        # without a null key the first queries read nothing; with it they read it, and one that is none stands before
        self.skipped, self.before = (0, 1) if null else (min(size - 1, length), 0)
        self.missing = -(length - self.skipped + self.before) % size
        self.rows = (length - self.skipped + self.before + self.missing) // size

    def folded(self, queries: Queries, keys: Keys) -> tuple[Queries, Keys]:
        """Queries by `size` times as many heads, and the keys that they read."""
        q = F.pad(queries.q[:, :, self.skipped :], (0, 0, self.before, self.missing))
        q = q.unflatten(2, (self.rows, self.size)).transpose(2, 3).flatten(1, 2)  # [B H*size rows K]
        pos = torch.arange(self.rows, device=q.device).expand(len(q), 1, -1)
        return Queries(q, pos), Keys(keys.k[:, :, : self.rows], keys.v[:, :, : self.rows], pos)

    def unfolded(self, read: Read) -> Read:
        """The same read by the heads that asked."""
        lse = None if read.lse is None else self._back(read.lse[..., None], -torch.inf)[..., 0]
        return Read(self._back(read.y, 0.0), lse)

    def _back(self, x: Float[Tensor, "B Hs R N"], nothing: float) -> Float[Tensor, "B H T N"]:
        x = x.unflatten(1, (-1, self.size)).transpose(2, 3).flatten(2, 3)
        x = x[:, :, self.before : self.before + self.length - self.skipped]
        return F.pad(x, (0, 0, self.skipped, 0), value=nothing)
