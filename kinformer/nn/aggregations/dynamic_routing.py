"""DynamicRouting: heads joined by agreement, each sent where the others point too."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.aggregation import Aggregation
from kinformer.core.checks import check_at_least, check_option
from kinformer.nn.aggregations.capsule_votes import Votes

Over = Literal["outputs", "inputs"]


class DynamicRouting(Aggregation):
    """Output capsules that heads vote for; a vote counts the more, the nearer it is to what all of them make.

    b_hn = 0; then `iterations` times: c = softmax of b, s_n = sum_h c_hn V_hn, v_n = squash(s_n), b_hn += V_hn . v_n

    squash(s) = |s|^2 / (1 + |s|^2) s / |s|, and V_hn = y_h W_hn. The v_n, side by side, are the vector of the token.
    Choose it over `OutProjection` in the lowest layers, where the papers find it to help, at H * N * V * W products a
    token and no new cost by length; `EMRouting` is the better of both in Li et al.

    heads, v_dim, d: as in `OutProjection`.
    capsules: N, how many output capsules there are, each d / N wide; as many as heads unless given.
    iterations: 3 in the papers.
    over: what shares a head's weight: the "outputs", so that each head is dealt out whole, the papers' form; or the
        "inputs", as in much read code, in which each output weighs the heads.

    Errors: ValueError for capsules that do not divide d, and an `over` that is none. Source: Sabour et al., 2017,
    arXiv:1710.09829, procedure 1; of heads Gu and Feng, 2019 (NLPCC), and Li et al., 2019, arXiv:1904.03100.
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
        """The output capsules of votes."""
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
    """The same direction, |s|^2 / (1 + |s|^2) long; 0 stays 0."""
    length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    return s * (length / (1 + length.square()))


EXAMPLES = (lambda: DynamicRouting(2, 8, 16), lambda: DynamicRouting(2, 8, 16, capsules=4, over="inputs"))
