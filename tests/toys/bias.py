"""Decay: a learned loss of score per position of distance."""

import torch
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, at, check_bias_heads
from kinformer.core.request import Request


class Decay(Bias):
    """Each head loses its own amount of score per position. Choose it where near tokens should count more."""

    def __init__(self, heads: int):
        super().__init__()
        self.log_rate = nn.Parameter(torch.full((heads,), -2.3))

    def bind(self, piece: Request) -> ScoreFn:
        check_bias_heads("Decay", len(self.log_rate), piece)
        q_pos, k_pos = piece.queries.pos, piece.keys.pos

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (at(q_pos, b, h, i) - at(k_pos, b, h, j)).abs()
            return s - (self.log_rate.exp()[h] * distance).to(s.dtype)

        return score


EXAMPLES = (lambda: Decay(2),)
