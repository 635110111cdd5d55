"""YaRN: rotary positions with interpolated slow pairs, unchanged fast pairs and sharper scores."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.checks import check_flag, check_in_range
from kinformer.core.rotary_scaling import RotaryScaling, check_original_length

__all__ = ["YaRN"]


@dataclass(frozen=True)
class YaRN(RotaryScaling):
    """YaRN: slow rotations are interpolated, fast rotations stay, and attention gets sharper.

    Pairs that turn more than `beta_fast` times within the trained length tell near tokens apart and stay as they are.
    Pairs that turn less than `beta_slow` times are divided by `factor`, as in `PositionInterpolation`. A ramp lies
    between. The rotated dimensions of queries and keys are multiplied by 0.1 ln(factor) + 1. Choose it for rows 2 to 32
    times as long as in the training. It needs the least further training of all scalings, and is good without any.

    ramp_n = (n - n(beta_fast)) / (n(beta_slow) - n(beta_fast)), limited to 0 .. 1, for pairs n = 0 .. N-1.

    w'_n = (1 - ramp_n) w_n + ramp_n w_n / factor, where pair n turns by w_n radians per position.

    The pair that turns r times in `length` tokens is n(r) = N ln(length / (2 pi r)) / ln(base).

    factor: the new length divided by the trained length, at least 1.
    length: the longest row of the original training, in tokens.
    beta_fast, beta_slow: turns within the trained length at the two ends of the ramp.
    attention_factor: factor of rotated queries and keys; 0.1 ln(factor) + 1 if None.
    truncate: round the ends of the ramp outwards to whole pairs, as the authors' code does.

    Errors: ValueError if `length` is missing, or if the base of the rotations is 1, so that all pairs turn equally.

    Source: Peng et al., 2023, arXiv:2309.00071, sections 3.2 and 3.4.

    Differences: the ramp is linear in the number of the pair, as in the authors' code and in transformers. In the
    paper's equation it is linear in the number of turns. The paper scales whole scores. Here, as in transformers, the
    part of dimensions that do not rotate stays, such as three quarters of a head of Pythia.
    """

    factor: float = 4.0
    length: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        check_in_range("factor", self.factor, 1, math.inf, open_end=True)
        check_original_length("YaRN", self.length)
        check_in_range("beta_slow", self.beta_slow, 2**-20, math.inf, open_end=True)
        check_in_range("beta_fast", self.beta_fast, self.beta_slow, math.inf, open_end=True)
        if self.attention_factor is not None:
            check_in_range("attention_factor", self.attention_factor, 0, math.inf, open_end=True)
        check_flag("truncate", self.truncate)

    @property
    def attention_scaling(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0 if self.attention_factor is None else self.attention_factor

    def scale(self, frequencies: Float[Tensor, " N"], base: float) -> Float[Tensor, " N"]:
        first, last = self._ramp(len(frequencies), base)
        n = torch.arange(len(frequencies), dtype=frequencies.dtype, device=frequencies.device)
        return frequencies.lerp(frequencies / self.factor, ((n - first) / (last - first)).clamp(0, 1))

    def _ramp(self, pairs: int, base: float) -> tuple[float, float]:
        """Return the places of the ends of the ramp among the pairs."""
        if base == 1:
            raise ValueError("YaRN failed: got base=1, expected a larger base. Use PositionInterpolation")
        assert self.length is not None
        first, last = (
            pairs * math.log(self.length / (2 * math.pi * turns)) / math.log(base)
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        # the authors' code limits the end to the number of dimensions, not of pairs
        first, last = max(first, 0.0), min(last, 2 * pairs - 1.0)
        return first, last + 0.001 if first == last else last
