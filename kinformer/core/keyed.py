"""Keyed: mechanisms whose state is a cache of keys."""

import torch

from kinformer.core.mechanism import Mechanism
from kinformer.core.pattern import Pattern
from kinformer.core.state import KV, start_keys


class Keyed(Mechanism):
    """A mechanism that reads keys under a `pattern` and decodes with a cache of those that a later query may read."""

    pattern: Pattern

    def start(
        self,
        batch: int,
        length: int,
        key_heads: int,
        k_dim: int,
        v_dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> KV:
        return start_keys(self.pattern, batch, length, key_heads, k_dim, v_dim, dtype=dtype, device=device)
