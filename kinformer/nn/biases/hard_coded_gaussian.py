"""HardCodedGaussian: the log density of a normal distribution around a fixed place beside the query."""

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
    """score + log N(j; ratio i + o_h, sigma_h): each head reads around one place, and nothing of it is learned.

    With `ValueProjection`, which give no scores, it is hard-coded attention: `Attention(ValueProjection(d, heads),
    Unnormalised(Full(), HardCodedGaussian(offsets)))` weighs values by the densities themselves, as the authors' code
    does, and `Softmax` in its place by densities over their sum. Choose it to see how little self-attention needs to
    know of content. Under a window such as `Band(8)` cost is linear; beyond 8 deviations a density is below 1e-14.

    offsets: o, in positions, of each head; the paper's are -1, 0 and 1.
    sigma: the deviation, in positions, of all heads, or one for each; 1 in the paper.
    ratio: how many keys there are for a query, the paper's gamma: 1 where a sequence reads itself, in cross-attention
        the usual length of a source over that of its target.

    Errors: ValueError for a layer of other heads. Source: You et al., 2020, arXiv:2005.00742, sections 3 and 4.
    """

    def __init__(self, offsets: tuple[float, ...], sigma: float | tuple[float, ...] = 1.0, *, ratio: float = 1.0):
        super().__init__()
        check_at_least("the number of offsets", len(offsets), 1)
        self.offsets = tuple(
            float(check_in_range(f"offsets[{n}]", number, -FAR, FAR)) for n, number in enumerate(offsets)
        )
        sigmas = sigma if isinstance(sigma, tuple) else (sigma,) * len(offsets)
        if len(sigmas) != len(offsets):
            raise ValueError(f"sigma has {len(sigmas)} numbers for {len(offsets)} offsets; give one, or one for each")
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
            return s + (highest[h] - away * away / 2)  # not rounded to bfloat16: far from the place densities are alike

        return score

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances | None:
        return of_distances(self, request, far) if self.ratio == 1 else None


EXAMPLES = (lambda: HardCodedGaussian((-1, 1)), lambda: HardCodedGaussian((0, 2), (1.0, 0.5), ratio=1.5))
