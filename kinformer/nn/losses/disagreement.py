"""Disagreement: three ways in which the heads of a layer can be kept apart."""

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput, map_query_blocks, weights
from kinformer.core.autocast import at_least_float32
from kinformer.core.heads import Keys
from kinformer.core.regulariser import Regulariser
from kinformer.core.request import Request


class SubspaceDisagreement(Regulariser):
    """1 / H^2 sum_ij cos(v_i, v_j) of the values of a token's heads: kept low, heads look into different subspaces.

    The cosines of all pairs of heads, a head with itself too, so it lies between 1 / H for heads at right angles on
    the whole and 1 for heads that are alike. It is the paper's D with its sign turned: weigh it above 0. A sequence
    that reads another one has no values of its own and is refused. Cost: one vector a token.

    Source: Li et al., 2018, arXiv:1810.10183, section 3.1.
    """

    key, allows_cross = "subspace_disagreement", False

    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        assert keys is not None
        return mean_cosine(at_least_float32(keys.v))


class PositionDisagreement(Regulariser):
    """1 / H^2 sum_ij sum_k A_ik A_jk of a query's attention weights: kept low, heads look at different places.

    All pairs of heads, a head with itself too: weights that no other head shares cost 1 / H^2 times the sum of their
    squares. The paper's D with its sign turned. Cost: the weights of all pairs once more, a block of queries at a time.

    Source: Li et al., 2018, arXiv:1810.10183, section 3.2.
    """

    key, needs_lse = "position_disagreement", True

    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        q, lse = request.queries.q, read.lse
        assert lse is not None

        def overlap(at: Tensor) -> Tensor:
            return weights(request, lse, at).sum(1).square().sum(-1)  # of all heads at once: [B R S] to [B R]

        empty = lse.new_zeros(q.shape[0], 0)
        return torch.cat([empty, *map_query_blocks(request, overlap)], 1) / q.shape[1] ** 2


class OutputDisagreement(Regulariser):
    """1 / H^2 sum_ij cos(y_i, y_j) of what a query's heads read: kept low, heads say different things.

    The one that helps most in the paper, and the cheapest to choose: one vector a token, no weights. The paper's D with
    its sign turned.

    Source: Li et al., 2018, arXiv:1810.10183, section 3.3.
    """

    key = "output_disagreement"

    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        return mean_cosine(at_least_float32(read.y))


def mean_cosine(x: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T"]:
    """The mean cosine of all pairs of heads; a head that is 0 has no direction and counts as 0."""
    directions = torch.nn.functional.normalize(x, dim=-1)
    return directions.mean(1).square().sum(-1)
