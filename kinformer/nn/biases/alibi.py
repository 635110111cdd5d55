"""ALiBi: a fixed penalty per position of distance, steeper in some heads than in others."""

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.bias import Bias, Distances, ScoreFn, at, check_bias_heads
from kinformer.core.checks import check_at_least
from kinformer.core.request import Request
from kinformer.nn.biases.bias_by_distance import of_distances


class ALiBi(Bias):
    """score - slope_h |i - j|, unscaled: for decoders that read further than they were trained, without positions.

    The slopes are fixed, a geometric sequence from 2^(-8/heads) to 2^-8 where heads is a power of two; see `slopes`.
    Under `Causal()` the distance is the paper's i - j; without it the form is symmetric, which suits encoders.
    Published code adds slope * j instead, the same after softmax.

    heads: those of the layer; slopes go from steep to flat.

    Errors: ValueError where the layer has another number of heads. Source: Press et al., 2021, arXiv:2108.12409,
    section 3.
    """

    endless = True

    def __init__(self, heads: int):
        super().__init__()
        self.slopes = slopes(check_at_least("heads", heads, 1))

    def bind(self, piece: Request) -> ScoreFn:
        check_bias_heads(f"ALiBi({len(self.slopes)})", len(self.slopes), piece)
        q, q_pos, k_pos = piece.queries.q, piece.queries.pos, piece.keys.pos
        dtype = torch.promote_types(q.dtype, torch.float32)  # bfloat16 cannot tell distance 256 from 257
        slope = torch.tensor(self.slopes, dtype=dtype, device=q.device)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (at(q_pos, b, h, i) - at(k_pos, b, h, j)).abs()
            return s - (slope[h] * distance).to(s.dtype)

        return score

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        return of_distances(self, request, far)


def slopes(heads: int) -> tuple[float, ...]:
    """2^(-8n/heads), n = 1..heads, for a power of two; else those of the power m below, then every other one of 2m."""
    m = 2 ** (heads.bit_length() - 1)
    return tuple(2.0 ** (-8 * (n + 1) / m) if n < m else 2.0 ** (-4 * (2 * (n - m) + 1) / m) for n in range(heads))


EXAMPLES = (lambda: ALiBi(2),)
