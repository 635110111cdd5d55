"""Timing: the waves of a position and those of a step."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.positions.sinusoidal import Frequencies, Order, Sinusoidal


class Timing(nn.Module):
    """sinusoid(pos) + sinusoid(step), 0 at padding: what tells the steps of a Universal Transformer apart.

    Positions and steps count from 0, as in Tensor2Tensor; the paper counts both from 1.

    d, layout, frequencies, base: those of `Sinusoidal`.

    Source: Dehghani et al., 2018, arXiv:1807.03819, section 2.1.
    """

    def __init__(
        self, d: int, *, layout: Order = "interleaved", frequencies: Frequencies | None = None, base: float = 10000.0
    ):
        super().__init__()
        self.waves = Sinusoidal(d, layout=layout, frequencies=frequencies, base=base)

    def forward(self, pos: Int[Tensor, "B T"], step: int) -> Float[Tensor, "B T D"]:
        return self.waves(pos) + self.waves(torch.where(pos >= 0, step, -1))


EXAMPLES = (lambda: Timing(16),)
