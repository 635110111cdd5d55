"""HardCodedGaussian: a fixed Gaussian window at a fixed offset from the query."""

import math

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.bias import Bias, Distances, ScoreFn, at, check_bias_heads
from kinformer.core.checks import check_at_least, check_in_range
from kinformer.core.request import Request
from kinformer.nn.biases.bias_by_distance import of_distances

FAR = 1e6


class HardCodedGaussian(Bias):
    """Fixed Gaussian window at a fixed offset from the query in each head, without learned parameters.

    bias_ij = log N(j; ratio i + o_h, sigma_h)

    Here N(j; m, s) is the density at j of a normal distribution with mean m and deviation s. Choose it to measure how
    well attention works without looking at content. With `ValueProjection`, which makes no queries and keys, it is
    hard-coded attention. `Attention(ValueProjection(d, heads), Unnormalised(Full(), HardCodedGaussian(offsets)))`
    multiplies values by the densities, as the authors' code does. With `Softmax` instead of `Unnormalised` the
    densities are divided by their sum.

    With a window pattern such as `Band(8)` the cost is linear in the row length. A density more than 8 deviations away
    is below 1e-14.

    offsets: offset o of each head, in positions; -1 and 1 in the authors' encoder, -1 and 0 in their decoder.
    sigma: deviation in positions, one number for all heads or one for each head; 1 in the paper.
    ratio: number of keys per query, gamma in the paper. Use 1 for self-attention. For cross-attention use the mean
        length of a source divided by the mean length of its target.

    Errors: ValueError if the layer has a different number of heads, or if `sigma` has another length than `offsets`.
    Source: You et al., 2020, arXiv:2005.00742, sections 3 and 4.
    """

    def __init__(self, offsets: tuple[float, ...], sigma: float | tuple[float, ...] = 1.0, *, ratio: float = 1.0):
        super().__init__()
        check_at_least("the number of offsets", len(offsets), 1)
        self.offsets = tuple(
            float(check_in_range(f"offsets[{n}]", number, -FAR, FAR)) for n, number in enumerate(offsets)
        )
        sigmas = sigma if isinstance(sigma, tuple) else (sigma,) * len(offsets)
        if len(sigmas) != len(offsets):
            raise ValueError(
                f"sigma has {len(sigmas)} numbers for {len(offsets)} offsets. Pass one number, or one per offset"
            )
        self.sigma = tuple(float(check_in_range("sigma", number, 0.01, FAR)) for number in sigmas)
        self.ratio = check_in_range("ratio", ratio, 0.001, FAR)

    def bind(self, piece: Request) -> ScoreFn:
        check_bias_heads(f"HardCodedGaussian of {len(self.offsets)} offsets", len(self.offsets), piece)
        q, q_pos, k_pos = piece.queries.q, piece.queries.pos, piece.keys.pos
        dtype = torch.promote_types(q.dtype, torch.float32)  # bfloat16 cannot tell position 256 from 257
        offset, sigma = (torch.tensor(numbers, dtype=dtype, device=q.device) for numbers in (self.offsets, self.sigma))
        highest = -torch.log(sigma * math.sqrt(2 * math.pi))

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            centre = self.ratio * at(q_pos, b, h, i).to(dtype) + offset[h]
            away = (at(k_pos, b, h, j).to(dtype) - centre) / sigma[h]
            return s + (highest[h] - away * away / 2)  # in bfloat16 far densities would be equal

        return score

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances | None:
        return of_distances(self, request, far) if self.ratio == 1 else None


EXAMPLES = (lambda: HardCodedGaussian((-1, 1)), lambda: HardCodedGaussian((0, 2), (1.0, 0.5), ratio=1.5))
