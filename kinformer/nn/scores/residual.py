"""ResidualScores: the product of query and key plus the scores of the block below."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

import kinformer as kf
from kinformer.core.checks import check_in_range, check_optional_part
from kinformer.core.layer import Want
from kinformer.core.pair_map import PairMap
from kinformer.core.request import Request
from kinformer.core.score import Score
from kinformer.core.score_matrix import mask
from kinformer.core.scores.product import Product
from kinformer.nn.scores.lower_scores import of_pairs


class ResidualScores(Score):
    """Product of query and key plus the scores of the block below.

    score_ij = own * scale q_i.k_j + below * g(score_ij of the block below)

    Choose it if each block should refine the attention of the block below. With both weights 1 it is RealFormer: it
    adds no parameters and hardly any time. Use `Explicit(pattern, score=ResidualScores(), up=True)` in every block.

    `up=True` passes the scores of a block on to the next block. The lowest block has no block below and uses the
    product without weights. Scores grow with depth. A pair that a bias excluded below with -inf stays excluded, unless
    `below` is 0.

    own, below: weights of the product and of the scores of the block below. RealFormer has 1 and 1. For a running mean
        of scores over blocks, give block n the weights 1 / n and 1 - 1 / n.
    change: map g of all scores of the block below, such as `MixHeads(heads)`; the scores are unchanged by default.

    Errors: ValueError if the scores of the block below are for other pairs or another number of heads. Source: He et
    al., 2020, arXiv:2012.11747; weights: prior from lower modules in Lin et al., 2021, arXiv:2106.04554.
    """

    wants = (Want("scores", optional=True),)

    def __init__(self, own: float = 1.0, below: float = 1.0, change: PairMap | None = None):
        super().__init__()
        self.change = check_optional_part("change", change, PairMap, "a PairMap, such as MixHeads(heads)")
        self.own, self.below = (check_in_range(n, w, -math.inf, math.inf) for n, w in (("own", own), ("below", below)))
        self.product = Product()

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        own_scores, previous = self.product(request), of_pairs("scores", request)
        if previous is None:
            return own_scores
        if not self.below:
            return self.own * own_scores
        if self.change is not None:
            previous = self.change(previous, mask(request))
        # a negative weight would turn -inf into the largest score
        return torch.where(previous == -torch.inf, -torch.inf, self.own * own_scores + self.below * previous)


def _changed() -> ResidualScores:
    return ResidualScores(0.7, 0.3, kf.MixHeads(2))


EXAMPLES = (ResidualScores, lambda: ResidualScores(0.7, 0.3), _changed)
