"""Disagreement: three regularisers that keep the attention heads of a layer different."""

import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput, map_query_blocks, weights
from kinformer.core.autocast import at_least_float32
from kinformer.core.heads import Keys
from kinformer.core.regulariser import Regulariser
from kinformer.core.request import Request


class SubspaceDisagreement(Regulariser):
    """The mean cosine between value vectors of a token's heads; it is low if heads differ.

        1 / H^2 sum_ij cos(v_i, v_j)

    Here v_i is the value vector of head i, and H the number of heads. Choose it if heads should read different
    subspaces; it needs only one vector per head and token. The sum counts all pairs of heads, also i = j. The result is
    1 / H if the vectors of all heads are orthogonal, and 1 if they are equal. Give it a weight above 0 in the loss.
    Cross-attention is refused, because its queries have no value vectors.

    Source: Li et al., 2018, arXiv:1810.10183, section 3.1.

    Differences: the sign is opposite to the paper's D.
    """

    key, allows_cross = "subspace_disagreement", False

    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        assert keys is not None
        return mean_cosine(at_least_float32(keys.v))


class PositionDisagreement(Regulariser):
    """The overlap of a query's attention weights between heads; it is low if heads read different keys.

        1 / H^2 sum_ij sum_k A_ik A_jk

    Here A_ik is the attention weight of head i for key k, and H the number of heads. Choose it if heads should look at
    different positions. The sum counts all pairs of heads, also i = j, so a head without any overlap still adds the sum
    of its squared weights divided by H^2. Computing the loss repeats the attention weights of all pairs, one block of
    queries at a time.

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
    """The mean cosine between outputs of a query's heads; it is low if heads return different outputs.

        1 / H^2 sum_ij cos(y_i, y_j)

    Here y_i is the output of head i, and H the number of heads. Choose it first: it improves translation most in the
    paper, and it needs only one vector per head and token, no attention weights.

    Source: Li et al., 2018, arXiv:1810.10183, section 3.3.

    Differences: the sign is opposite to the paper's D.
    """

    key = "output_disagreement"

    def forward(self, request: Request, read: AttentionOutput, keys: Keys | None) -> Float[Tensor, "B T"]:
        return mean_cosine(at_least_float32(read.y))


def mean_cosine(x: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T"]:
    """Return the mean cosine between the vectors of all pairs of heads; a zero vector has cosine 0.

    x: a vector for each head, [B H T V].
    """
    directions = torch.nn.functional.normalize(x, dim=-1)
    return directions.mean(1).square().sum(-1)
