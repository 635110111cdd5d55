"""Timing: the sum of the sinusoids of a position and of a step of a repeated block."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.checks import check_option
from kinformer.core.keyword_hints import KeywordHints
from kinformer.nn.positions.sinusoidal import Frequencies, Order, Sinusoidal


class Timing(nn.Module, KeywordHints):
    """Sum of the sinusoids of a position and of a step of a repeated block, 0 at padding.

    e(pos, step) = sinusoid(pos) + sinusoid(step)

    A Universal Transformer adds it to the input of each step, so that its block can distinguish steps.

    d, layout, frequencies, base: as in `Sinusoidal`.
    first: number of the first position and the first step: 0, as in `Sinusoidal` and Tensor2Tensor, or 1, as in the
        paper.

    Source: Dehghani et al., 2018, arXiv:1807.03819, section 2.1.
    """

    def __init__(
        self,
        d: int,
        *,
        layout: Order = "interleaved",
        frequencies: Frequencies | None = None,
        base: float = 10000.0,
        first: Literal[0, 1] = 0,
    ):
        super().__init__()
        self.first = check_option("first", first, (0, 1))
        self.waves = Sinusoidal(d, layout=layout, frequencies=frequencies, base=base)

    def forward(self, pos: Int[Tensor, "B T"], step: int) -> Float[Tensor, "B T D"]:
        real = pos >= 0
        return self.waves(torch.where(real, pos + self.first, -1)) + self.waves(
            torch.where(real, step + self.first, -1)
        )


EXAMPLES = (lambda: Timing(16), lambda: Timing(16, first=1))
