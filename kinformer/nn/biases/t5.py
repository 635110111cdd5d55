"""T5: a learned number for each bucket of distances, fine nearby and coarse far away."""

import math

import torch
from jaxtyping import Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32
from kinformer.core.bias import Bias, Distances, ScoreFn, at, check_bias_heads
from kinformer.core.checks import check_at_least
from kinformer.core.request import Request
from kinformer.nn.biases.bias_by_distance import of_distances


class T5(Bias):
    """Learned number for each head and bucket of distances, added to the score.

    Choose it as a fast learned bias that works at any length. A bucket is a range of distances that share a number. The
    nearer half of the buckets of a direction (keys before or after the query) hold one distance each. The ranges of the
    other half grow in equal steps of the logarithm, up to `furthest`. The last bucket of a direction also holds all
    larger distances.

    heads: number of heads of the layer.
    buckets: number of buckets of both directions together; 32 in the paper.
    furthest: distance in positions at which the logarithmic ranges end; this distance and all larger ones share the
        last bucket. It is 128 in the paper.
    ahead: if True, half of the buckets are for keys after their query, which suits encoders. Otherwise these keys count
        as distance 0.

    Errors: ValueError if there are fewer than 2 buckets for a direction, or if `furthest` is not above the distances
    that have a bucket of their own. ValueError also if the layer has a different number of heads. Source: Raffel et
    al., 2019, arXiv:1910.10683, section 2.1.
    """

    def __init__(self, heads: int, buckets: int = 32, furthest: int = 128, *, ahead: bool = False):
        super().__init__()
        self.side = check_at_least("buckets", buckets, 1) // 2 if ahead else buckets
        if self.side < 2 or furthest <= self.side // 2:
            raise ValueError(
                f"buckets={buckets}, furthest={furthest}: expected at least 2 buckets per direction, and "
                "furthest above half the number of buckets per direction, because each bucket of that half has one "
                "distance"
            )
        self.furthest, self.ahead = furthest, ahead
        self.table = nn.Parameter(torch.randn(buckets, check_at_least("heads", heads, 1)) * 0.02)

    def bucket(self, distance: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Return the index of the bucket (range of distances) of each distance i - j."""
        exact, far = self.side // 2, distance.abs() if self.ahead else distance.clamp_min(0)
        # in float32, as the models with these buckets were trained: borders fall on powers, where rounding decides
        ratio = torch.log(far.clamp_min(exact).float() / exact) / math.log(self.furthest / exact)
        coarse = (exact + (ratio * (self.side - exact)).long()).clamp_max(self.side - 1)
        bucket = torch.where(far < exact, far, coarse)
        return bucket + self.side * (distance < 0) if self.ahead else bucket

    def bind(self, piece: Request) -> ScoreFn:
        check_bias_heads(f"a T5 of {self.table.shape[1]} heads", self.table.shape[1], piece)
        q_pos, k_pos = piece.queries.pos, piece.keys.pos
        # gradients of a bucket are summed in float32: a bfloat16 sum of thousands stops growing
        table, dtype = at_least_float32(self.table), torch.promote_types(self.table.dtype, piece.queries.q.dtype)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + table[self.bucket(at(q_pos, b, h, i) - at(k_pos, b, h, j)), h].to(dtype)

        return score

    def by_distance(self, request: Request, far: Int[Tensor, " N"]) -> Distances:
        return of_distances(self, request, far)


EXAMPLES = (lambda: T5(2, 8, 12), lambda: T5(2, 10, 9, ahead=True))
