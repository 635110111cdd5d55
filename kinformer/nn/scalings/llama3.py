"""Llama 3.1's scaling of rotary positions: long waves are stretched, short waves stay."""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_in_range, check_strictly_between
from kinformer.core.rotary_scaling import RotaryScaling, check_original_length

__all__ = ["Llama3Scaling"]


@dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    """Llama 3.1's scaling: waves longer than `length` are stretched by `factor`, much shorter waves stay.

    Llama 3.1 to 3.3 were trained further with it, at 131,072 tokens. Choose it to load or continue these models. `YaRN`
    has the same idea, a ramp over pairs instead of turns, and sharper attention; choose it for other models.

    t_n = length w_n / (2 pi): the turns of pair n within the trained length
    ramp_n = (high_freq_factor - t_n) / (high_freq_factor - low_freq_factor), limited to 0 .. 1
    w'_n = (1 - ramp_n) w_n + ramp_n w_n / factor

    Pair n, a wave, turns by w_n radians per position.

    factor: factor of the longest waves, at least 1; 8 in Llama 3.1, 32 in Llama 3.2.
    low_freq_factor, high_freq_factor: turns within the trained length at the two ends of the ramp. The second is the
        larger one.
    length: the longest row of the original training, in tokens; 8,192 in Llama 3.

    Errors: ValueError if `length` is missing.

    Source: Grattafiori et al., 2024, arXiv:2407.21783, section 3.4.2; the ramp is in the code of the models,
    https://github.com/meta-llama/llama-models.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    length: int | None = None

    def __post_init__(self) -> None:
        check_in_range("factor", self.factor, 1, math.inf, open_end=True)
        check_in_range("low_freq_factor", self.low_freq_factor, 0, math.inf, open_end=True)
        check_original_length("Llama3Scaling", self.length)
        check_strictly_between("high_freq_factor", self.high_freq_factor, self.low_freq_factor, math.inf)

    def scale(self, frequencies: Float[Tensor, " N"], base: float) -> Float[Tensor, " N"]:
        assert self.length is not None
        within = frequencies * (self.length / (2 * math.pi))
        ramp = (self.high_freq_factor - within) / (self.high_freq_factor - self.low_freq_factor)
        return frequencies.lerp(frequencies / self.factor, ramp.clamp(0, 1))
