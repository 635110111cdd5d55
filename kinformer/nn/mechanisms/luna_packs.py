"""Packs: the short sequence that holds Luna's summary of a long one."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.keyword_hints import KeywordHints
from kinformer.nn.positions.sinusoidal import Sinusoidal

__all__ = ["Packs"]

Start = Literal["learned", "sinusoidal"]


class Packs(nn.Module, KeywordHints):
    """Initial packs P, [l, d]: l vectors that Luna's layers turn into a summary of the row.

    count: number l of packs.
    d: width of a pack.
    start: "learned" for a parameter, or "sinusoidal" for fixed values.
    """

    p: Tensor

    def __init__(self, count: int, d: int, start: Start = "learned"):
        super().__init__()
        self.count, self.d = check_at_least("count", count, 1), check_at_least("d", d, 1)
        if check_option("start", start, Start) == "learned":
            self.p = nn.Parameter(torch.randn(count, d) * d**-0.5)
        else:
            self.register_buffer("p", Sinusoidal(d)(torch.arange(count)[None])[0], persistent=False)

    def forward(self) -> Float[Tensor, "l D"]:
        return self.p
