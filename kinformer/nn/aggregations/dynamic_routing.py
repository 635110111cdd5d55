"""DynamicRouting: heads combined by agreement: predictions (votes) that agree get more weight."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.aggregation import Aggregation
from kinformer.core.checks import check_at_least, check_option
from kinformer.nn.aggregations.capsule_votes import Votes

Over = Literal["outputs", "inputs"]


class DynamicRouting(Aggregation):
    """Aggregation by dynamic routing: each output capsule gives more weight to votes that agree with it.

    b_hn = 0; then `iterations` times: c = softmax of b, s_n = sum_h c_hn V_hn, v_n = squash(s_n), b_hn += V_hn . v_n

    squash(s) = |s|^2 / (1 + |s|^2) s / |s|, and V_hn = y_h W_hn

    The token's vector is the concatenation of all v_n. Here V_hn is the vote of head h for capsule n, and v_n is the
    vector of the capsule. Choose it over `OutProjection` (one matrix) in the lowest layers, because the papers find
    that it helps there. It costs H * N * V * W multiplications per token for H heads of width V and N capsules of width
    W, independent of the row length. `EMRouting` has the higher quality of both in Li et al.

    heads, v_dim, d: as in `OutProjection`.
    capsules: N, the number of output capsules, each d / N wide; as many as heads by default.
    iterations: number of iterations; 3 in the papers.
    over: axis of the softmax. "outputs", the papers' form, distributes each head over the capsules; "inputs", as in
        much published code, lets each capsule weight the heads.

    Errors: ValueError if capsules do not divide d, or if `over` is unknown.

    Source: Sabour et al., 2017, arXiv:1710.09829, procedure 1; of heads Gu and Feng, 2019, arXiv:1909.00188, and Li et
    al., 2019, arXiv:1904.03100.
    """

    def __init__(
        self,
        heads: int,
        v_dim: int,
        d: int,
        *,
        capsules: int | None = None,
        iterations: int = 3,
        over: Over = "outputs",
    ):
        super().__init__()
        self.votes = Votes(heads, v_dim, d, capsules)
        self.iterations, self.over = check_at_least("iterations", iterations, 1), check_option("over", over, Over)

    def forward(self, y: Float[Tensor, "B H T V"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return self.route(self.votes(y)).flatten(-2)  # [B T N*W]

    def route(self, votes: Float[Tensor, "*B H N W"]) -> Float[Tensor, "*B N W"]:
        """Return the vectors v_n of the output capsules.

        votes: vote V_hn of each head h for each capsule n.
        """
        agreed = votes.new_zeros(votes.shape[:-1])
        capsules = self._capsules(votes, agreed)
        for _ in range(self.iterations - 1):
            agreed = agreed + (votes * capsules[..., None, :, :]).sum(-1)  # [*B H N]
            capsules = self._capsules(votes, agreed)
        return capsules

    def _capsules(self, votes: Float[Tensor, "*B H N W"], agreed: Float[Tensor, "*B H N"]) -> Float[Tensor, "*B N W"]:
        shares = agreed.softmax(-1 if self.over == "outputs" else -2)
        return squash((shares[..., None] * votes).sum(-3))


def squash(s: Float[Tensor, "*B W"]) -> Float[Tensor, "*B W"]:
    """Scale s to the length |s|^2 / (1 + |s|^2) in the same direction; 0 stays 0.

    s: vectors in the last dimension.
    """
    length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    return s * (length / (1 + length.square()))


EXAMPLES = (lambda: DynamicRouting(2, 8, 16), lambda: DynamicRouting(2, 8, 16, capsules=4, over="inputs"))
