"""NTK-aware scaling: a larger base of rotary positions, which slows the slowest rotation most."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_in_range
from kinformer.core.rotary_scaling import RotaryScaling

__all__ = ["NTKAware"]


@dataclass(frozen=True)
class NTKAware(RotaryScaling):
    """NTK-aware scaling: the base is multiplied by factor^(N/(N-1)), for N pairs of dimensions.

    The slowest pair then turns `factor` times slower, the fastest pair as before, and those between by degrees. Choose
    it without further training, if a factor is all that is known about the model. `YaRN` is better after training, and
    it states which pairs stay as they are. Because middle pairs turn less than `factor` times slower, some of their
    angles are new before the row is `factor` times as long.

    w'_n = w_n factor^(-n/(N-1)), n = 0 .. N-1, where pair n turns by w_n radians per position

    factor: the new length divided by the trained length, at least 1.

    Source: Peng et al., 2023, arXiv:2309.00071, section 3.1, definition 1.
    """

    factor: float = 4.0

    def __post_init__(self) -> None:
        check_in_range("factor", self.factor, 1, math.inf, open_end=True)

    def scale(self, frequencies: Float[Tensor, " N"], base: float) -> Float[Tensor, " N"]:
        n = torch.arange(len(frequencies), dtype=frequencies.dtype, device=frequencies.device)
        last = max(len(frequencies) - 1, 1)  # a single pair is the fastest one and stays
        return frequencies * self.factor ** (-n / last)
