"""EMRouting: heads combined by a mixture of Gaussians over their votes, one for each output capsule."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.aggregation import Aggregation
from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.checks import check_at_least, check_in_range, check_option
from kinformer.core.example import Example
from kinformer.nn.aggregations.capsule_votes import Votes

Weights = Literal["activation", "renormalised"]
EPS = 1e-8  # added to masses and variances, as in published code


class EMRouting(Aggregation):
    """Aggregation by EM routing: each output capsule is a Gaussian over the votes of heads.

    Closer and tighter votes make a capsule more active. Start with r_hn = 1 / N. Then do the M and the E step
    `iterations` times, with w_hn = r_hn a_h and R_n = sum_h w_hn, for each dimension j of a vote. Here V_hn is the vote
    of head h for capsule n, and r_hn is the share of head h that capsule n gets. There is no E step after the last M
    step.

        M: mu_nj, sigma^2_nj = mean and variance of V_hnj weighted by w_hn; cost_nj = (beta_u_n + log sigma_nj) R_n;
           a_n = sigmoid(sharpness (beta_a_n - sum_j cost_nj))
        E: r_hn = softmax_n(log a_n + log N(V_hn; mu_n, sigma^2_n))

    V_hn = y_h W_hn, a_h = sigmoid(w_h . y_h + b_h)

    The token's vector is the concatenation of all a_n mu_n. Choose it over `OutProjection` in the lowest layers, where
    Li et al. find the largest gain. Choose it over `DynamicRouting` if quality matters more than time. It computes in
    float32 or better. With few heads a capsule may collapse to one head. Its variance is then at its lower bound of
    1e-8, and small changes of votes change r_hn a lot.

    heads, v_dim, d: as in `OutProjection`.
    capsules: N, the number of output capsules, each d / N wide; as many as heads by default.
    iterations: number of iterations; 3 in the papers.
    sharpness: inverse temperature lambda, the same in every iteration.
    weights: "activation" is w_hn as above, from Hinton et al.; "renormalised" divides it by its sum over n, as a
        well-known PyTorch code does, which nearly cancels a_h.

    Errors: ValueError if capsules do not divide d, if sharpness is below 0, or if `weights` is unknown.

    Source: Hinton et al., 2018, https://openreview.net/forum?id=HJWLfGWRb, procedure 1; of heads Li et al., 2019,
    arXiv:1904.03100.
    """

    def __init__(
        self,
        heads: int,
        v_dim: int,
        d: int,
        *,
        capsules: int | None = None,
        iterations: int = 3,
        sharpness: float = 1.0,
        weights: Weights = "activation",
    ):
        super().__init__()
        self.votes = Votes(heads, v_dim, d, capsules)
        self.iterations = check_at_least("iterations", iterations, 1)
        self.sharpness = check_in_range("sharpness", sharpness, 0, math.inf)
        self.weights = check_option("weights", weights, Weights)
        self.active = nn.Parameter(torch.randn(heads, v_dim) * v_dim**-0.5)
        self.active_bias = nn.Parameter(torch.zeros(heads))
        self.beta_u = nn.Parameter(torch.zeros(self.votes.capsules))
        self.beta_a = nn.Parameter(torch.zeros(self.votes.capsules))

    def forward(self, y: Float[Tensor, "B H T V"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        y, kind = at_least_float32(y), y.dtype
        with disable_autocast(y):  # autocast would round the votes by more than a capsule's variance
            level = torch.einsum("bhtv,hv->bth", y, self.active.to(y.dtype)) + self.active_bias
            means, active = self.route(self.votes(y), level.sigmoid())
        return (active[..., None] * means).flatten(-2).to(kind)  # [B T N*W]

    def route(
        self, votes: Float[Tensor, "*B H N W"], activation: Float[Tensor, "*B H"]
    ) -> tuple[Float[Tensor, "*B N W"], Float[Tensor, "*B N"]]:
        """Return the means mu_n and the activations a_n of the output capsules.

        votes: vote V_hn of each head h for each capsule n.
        activation: activation a_h of each head.
        """
        shares = torch.full_like(votes[..., 0], 1 / votes.shape[-2])  # [*B H N]
        means, variance, level = self._fit(votes, shares * activation[..., None])
        for _ in range(self.iterations - 1):
            away = (votes - means[..., None, :, :]).square() / variance[..., None, :, :]
            likely = -(away + (2 * math.pi * variance).log()[..., None, :, :]).sum(-1) / 2  # [*B H N]
            shares = (F.logsigmoid(level)[..., None, :] + likely).softmax(-1)
            means, variance, level = self._fit(votes, shares * activation[..., None])
        return means, level.sigmoid()

    def _fit(
        self, votes: Float[Tensor, "*B H N W"], weights: Float[Tensor, "*B H N"]
    ) -> tuple[Float[Tensor, "*B N W"], Float[Tensor, "*B N W"], Float[Tensor, "*B N"]]:
        """Do the M step: return means and variances of capsules, and their activations before the sigmoid."""
        if self.weights == "renormalised":
            weights = weights / (weights.sum(-1, keepdim=True) + EPS)
        mass = weights.sum(-2)  # [*B N]
        shares = (weights / (mass[..., None, :] + EPS))[..., None]
        means = (shares * votes).sum(-3)
        variance = (shares * (votes - means[..., None, :, :]).square()).sum(-3) + EPS
        cost = (self.beta_u[:, None] + variance.log() / 2) * mass[..., None]
        return means, variance, self.sharpness * (self.beta_a - cost.sum(-1))


_STIFF = "routing divides squares by variances, which are small with few heads, so rounding errors change the shares"
EXAMPLES = (
    Example(lambda: EMRouting(2, 8, 16, capsules=4), {"dtype": _STIFF}),
    Example(
        lambda: EMRouting(2, 8, 16, capsules=8, iterations=2, sharpness=0.5, weights="renormalised"),
        breaks={"autocast": _STIFF},
    ),
)
