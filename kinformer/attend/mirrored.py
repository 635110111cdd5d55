"""Pattern with exchanged queries and keys, for the backward pass in tiles of keys."""

from dataclasses import dataclass

from torch import Tensor

from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True, repr=False)
class Mirrored(Pattern):
    """Pattern that allows a pair (q, k) if another pattern allows (k, q).

    of: the other pattern.
    """

    of: Pattern

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return self.of(b, h, k, q)

    def reach(self) -> tuple[float, float]:
        back, ahead = self.of.reach()
        return ahead, back

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        return self.of.cover(k_lo, k_hi, q_lo, q_hi)
