"""ALiBi: a fixed linear penalty on the distance, with a different slope in each head."""

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.bias import Bias, Distances, ScoreFn, at, check_bias_heads
from kinformer.core.checks import check_at_least
from kinformer.core.request import Request
from kinformer.nn.biases.bias_by_distance import of_distances


class ALiBi(Bias):
    """Fixed linear penalty on the distance between query and key, with one slope for each head.

    bias_ij = -slope_h |i - j|

    Choose it for decoders without position embeddings that read longer sequences than in training. Without `Causal()`
    the penalty is symmetric, which suits encoders. The attention scale does not multiply the penalty.

    If `heads` is a power of two, the slopes are a geometric sequence from 2^(-8/heads) to 2^-8. See `slopes` for other
    numbers of heads.

    heads: number of heads of the layer. If it is a power of two, the slopes decrease from the first head to the last.

    Errors: ValueError if the layer has a different number of heads. Source: Press et al., 2021, arXiv:2108.12409,
    section 3.

    Differences: under `Causal()` the distance is i - j, as in the paper. Published code adds slope * j instead, which
    gives the same weights after softmax.
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
    """Return the slope of each head of an `ALiBi` bias.

    A power of two gives 2^(-8n/heads) for n = 1..heads. For other numbers, let m be the largest power of two below
    `heads`. The first m heads take the slopes for m heads. The remaining heads take the first, third, fifth and so on
    of the slopes for 2m heads.

    heads: number of heads.
    """
    m = 2 ** (heads.bit_length() - 1)
    return tuple(2.0 ** (-8 * (n + 1) / m) if n < m else 2.0 ** (-4 * (2 * (n - m) + 1) / m) for n in range(heads))


EXAMPLES = (lambda: ALiBi(2),)
