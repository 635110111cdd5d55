"""PairMask: the pairs of query and key that a mask allows."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True, eq=False, repr=False)
class PairMask(Pattern):
    """Attention to the pairs of a mask: query t reads key s if the mask is True there.

    mask[b, i, j]

    Choose it for a mask that no pattern describes, because a pattern of numbers is faster and decodes with a cache. A
    mask that differs from batch to batch is passed as `Context(only=PairMask(mask))`. In
    `scaled_dot_product_attention` True has the same meaning. In the `attn_mask` of `nn.MultiheadAttention` it has the
    opposite one, so pass `~attn_mask`.

    mask: True at pairs that are read [B T S], such as `mask.expand(B, -1, -1)` if all rows share a mask. Rows and
        columns of the mask are absolute positions. Positions beyond it read nothing and are not read.
    """

    mask: Bool[Tensor, "B T S"]

    def __post_init__(self) -> None:
        mask = self.mask
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.dim() != 3:
            actual = f"{mask.dtype} of shape {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(
                f"PairMask.mask is {actual}; give a bool tensor [B, T, S], True at pairs that are read, such as "
                "mask.bool().expand(B, -1, -1)"
            )

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        _, queries, keys = self.mask.shape
        in_mask = torch.as_tensor((q < queries) & (k < keys))
        return self.mask[b, torch.as_tensor(q).clamp(max=queries - 1), torch.as_tensor(k).clamp(max=keys - 1)] & in_mask

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        some = _count(self.mask.any(0), q_lo + at, q_hi + at, k_lo + at, k_hi + at)
        every = _count(self.mask.all(0), q_lo + at, q_hi + at, k_lo + at, k_hi + at)
        return some > 0, every == (q_hi - q_lo + 1) * (k_hi - k_lo + 1)


def _count(pairs: Bool[Tensor, "T S"], q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Tensor:
    """Return the number of True entries in each block of queries and keys, ends included."""
    before = F.pad(pairs.long().cumsum(0).cumsum(1), (1, 0, 1, 0))  # entries above and left of a corner
    (top, bottom), (left, right) = (
        (lo.clamp_max(end), (hi + 1).clamp_max(end))
        for lo, hi, end in ((q_lo, q_hi, pairs.shape[0]), (k_lo, k_hi, pairs.shape[1]))
    )
    return before[bottom, right] - before[top, right] - before[bottom, left] + before[top, left]


_GAPS = torch.arange(64)[:, None] % 3 != torch.arange(64) % 5
EXAMPLES = (PairMask(_GAPS.expand(8, 64, 64)), PairMask(torch.stack([_GAPS.tril(), _GAPS.T] * 4)))
