"""Decay: a learned loss of score per position of distance."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, at
from kinformer.core.layer import Context


class Decay(Bias):
    """Each head loses its own amount of score per position. Choose it where near tokens should count more."""

    def __init__(self, heads: int):
        super().__init__()
        self.rate = nn.Parameter(torch.full((heads,), 0.1))

    def bind(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G S K"],
        q_pos: Int[Tensor, "B #H T"],
        k_pos: Int[Tensor, "B #H S"],
        *,
        scale: float,
        reach: tuple[float, float],
        ctx: Context | None,
        sides: Mapping[str, Tensor],
    ) -> ScoreFn:
        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s - self.rate[h].to(s.dtype) * (at(q_pos, b, h, i) - at(k_pos, b, h, j)).abs()

        return score


EXAMPLES = (lambda: Decay(2),)
