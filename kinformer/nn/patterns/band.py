"""Band: a sliding window."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kinformer.core.checks import check_whole_number
from kinformer.core.layout import Layout, Near
from kinformer.core.pattern import Index, Pattern


@dataclass(frozen=True)
class Band(Pattern):
    """Sliding window: each query reads its neighbours on both sides.

    i - left <= j <= i + right

    Choose it if near tokens matter most, and add `| Tokens(n) | Rows(n)` for global tokens. `Band(w)` reads w keys on
    each side and the query itself. `Causal() & Band(w - 1)` is a decoder's window of the last w keys, with the query
    itself. `Band(w, -1)` reads w keys before the query, without the query itself.

    left: number of positions before the query; negative if the window begins after the query.
    right: number of positions after the query; negative if the window ends before the query. None means `left`.

    Errors: ValueError if left + right < 0, since such a window holds no key.
    Source: Beltagy et al., 2020, arXiv:2004.05150, section 3.1.
    """

    left: int
    right: int | None = None

    def __post_init__(self) -> None:
        check_whole_number("Band.left", self.left)
        if self.right is not None:
            check_whole_number("Band.right", self.right)
        if self.left + self.ahead < 0:
            raise ValueError(f"{self} contains no key. Make left + right at least 0")

    @property
    def ahead(self) -> int:
        return self.left if self.right is None else self.right

    def __call__(self, b: Index, h: Index, q: Index, k: Index) -> Tensor:
        return torch.as_tensor((q - k <= self.left) & (k - q <= self.ahead))

    @property
    def layout(self) -> Layout:
        return Near(self.left, self.ahead)

    def reach(self) -> tuple[float, float]:
        return self.left, self.ahead

    def live(self, k: Tensor, now: Tensor) -> Tensor:
        return k >= now - self.left

    def capacity(self, length: int) -> int:
        return min(length, max(0, self.left))

    def period(self) -> int | None:
        return 1

    def cover(self, q_lo: Index, q_hi: Index, k_lo: Index, k_hi: Index) -> tuple[Tensor, Tensor]:
        at = torch.as_tensor(q_lo + q_hi + k_lo + k_hi) * 0
        any_pair = (k_hi >= q_lo - self.left + at) & (k_lo <= q_hi + self.ahead + at)
        return any_pair, (k_lo >= q_hi - self.left + at) & (k_hi <= q_lo + self.ahead + at)


EXAMPLES = (Band(3), Band(2, 0), Band(1, 4), Band(3, -1), Band(-1, 2))
