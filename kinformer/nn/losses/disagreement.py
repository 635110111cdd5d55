"""Disagreement: three regularisers that keep the heads of a layer different."""

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput, map_query_blocks, weights
from kinformer.core.autocast import at_least_float32
from kinformer.core.heads import Keys
from kinformer.core.regulariser import Regulariser
from kinformer.core.request import Request


class SubspaceDisagreement(Regulariser):
    """The mean cosine of the values of a token's heads; a low value means different subspaces.

        1 / H^2 sum_ij cos(v_i, v_j)

    Choose it if heads should read different subspaces; it needs only one vector per token. The sum counts all pairs of
    heads, also i = j. The value lies between 1 / H for heads at right angles on the whole and 1 for equal heads. Weigh
    it above 0. Cross-attention is refused, because its queries have no values of their own.

    Source: Li et al., 2018, arXiv:1810.10183, section 3.1.

    Differences: the sign is opposite to the paper's D.
    """

    key, allows_cross = "subspace_disagreement", False

    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        assert keys is not None
        return mean_cosine(at_least_float32(keys.v))


class PositionDisagreement(Regulariser):
    """The overlap of a query's attention weights between heads; a low value means different keys.

        1 / H^2 sum_ij sum_k A_ik A_jk

    Choose it if heads should look at different positions. The sum counts all pairs of heads, also i = j. Weights that
    no other head shares cost 1 / H^2 times the sum of their squares. Computing the loss repeats the attention weights
    of all pairs, one block of queries at a time.

    Source: Li et al., 2018, arXiv:1810.10183, section 3.2.

    Differences: the sign is opposite to the paper's D.
    """

    key, needs_lse = "position_disagreement", True

    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        q, lse = request.queries.q, read.lse
        assert lse is not None

        def overlap(at: Tensor) -> Tensor:
            return weights(request, lse, at).sum(1).square().sum(-1)  # all heads at once: [B R S] to [B R]

        empty = lse.new_zeros(q.shape[0], 0)
        return torch.cat([empty, *map_query_blocks(request, overlap)], 1) / q.shape[1] ** 2


class OutputDisagreement(Regulariser):
    """The mean cosine of the outputs of a query's heads; a low value makes heads return different outputs.

        1 / H^2 sum_ij cos(y_i, y_j)

    Choose it first: it helps most in the paper, and it is cheap, with one vector per token and no weights.

    Source: Li et al., 2018, arXiv:1810.10183, section 3.3.

    Differences: the sign is opposite to the paper's D.
    """

    key = "output_disagreement"

    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        return mean_cosine(at_least_float32(read.y))


def mean_cosine(x: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T"]:
    """Return the mean cosine of all pairs of heads; a zero vector has no direction and counts as 0.

    x: a vector for each head, [B H T V].
    """
    directions = torch.nn.functional.normalize(x, dim=-1)
    return directions.mean(1).square().sum(-1)
