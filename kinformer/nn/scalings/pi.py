"""Position interpolation: all rotary positions divided by one factor."""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_in_range
from kinformer.core.rotary_scaling import RotaryScaling

__all__ = ["PositionInterpolation"]


@dataclass(frozen=True)
class PositionInterpolation(RotaryScaling):
    """Position interpolation (PI): every frequency divided by `factor`, as if tokens were closer.

    A row of `factor` times the trained length then has only angles that the training has seen. It is `rope_type`
    "linear" in transformers. Choose it if the model is trained further on long rows (about 1,000 steps in the paper).
    Without training, near tokens become hard to tell apart, so choose `YaRN` or `NTKAware`.

    w'_n = w_n / factor, where pair n turns by w_n radians per position

    factor: the new length divided by the trained length, at least 1.

    Source: Chen et al., 2023, arXiv:2306.15595, section 2.3.
    """

    factor: float = 4.0

    def __post_init__(self) -> None:
        check_in_range("factor", self.factor, 1, math.inf, open_end=True)

    def scale(self, frequencies: Float[Tensor, " N"], base: float) -> Float[Tensor, " N"]:
        return frequencies / self.factor
