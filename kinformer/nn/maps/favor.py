"""FAVOR: positive random features that estimate exp(q.k / sqrt(K)), for linear attention."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx

from kinformer.core.checks import check_flag, check_in_range, check_option
from kinformer.core.example import Example
from kinformer.core.function_transforms import is_transformed
from kinformer.core.unrepeatable import Unrepeatable
from kinformer.nn.maps.random_features import Directions, Lengths

Stabiliser = Literal["token", "sequence"]
SCALED_BY_CALL = Unrepeatable(
    "FAVOR(stabiliser='sequence') scales all keys by the largest key feature of each call", "pass stabiliser=token"
)


class FAVOR(Directions):
    """Feature map of the Performer (FAVOR+): positive random features that estimate exp(q.k / sqrt(K)).

    phi(x) = exp(w.x - |x|^2 / 2) / sqrt(m) for m directions w, with x = q / K^(1/4) or x = k / K^(1/4)

    Choose it for an estimate of softmax attention at linear cost. The estimate of exp(q.k / sqrt(K)) is unbiased up to
    `eps`. The features of each vector are divided by the largest of them, and this scale is returned beside the
    features. No key therefore depends on a later one, and no feature overflows. The log-sum-exp of the weights
    estimates the log-sum-exp of softmax, so the result can be merged with `Softmax` attention over other keys.

    eps: added to scaled features, so that sums are above 0; it is negligible beside a feature near the largest. The
        authors' TensorFlow code has 1e-6, their JAX code 1e-4. The paper's equation has 0, which makes the estimate
        unbiased. A query then reads nothing if its large features are tiny in every key.
    hyperbolic: if True, use each direction w as w and -w, so that half as many directions give the same number of
        features, with a lower error.
    stabiliser: "token" divides the features of each vector by the largest of them. "sequence" (with `eps=1e-4`) is the
        form of published code. It divides all keys of a row and head by their largest exp(w.x), and leaves exp(-|x|^2 /
        2) in the feature. Through eps, later keys and padding then affect a query. In float32, keys with |k|^2 /
        sqrt(K) above about 250 then vanish from sums.
    k_dim, directions, orthogonal, lengths, redraw, seed: as in `Directions`; the paper redraws, and its code has 256
        directions.

    Errors: ValueError if the heads have another width than `k_dim`. Source: Choromanski et al., 2020, arXiv:2009.14794,
    sections 2.2 to 2.4.
    """

    def __init__(
        self,
        k_dim: int,
        directions: int = 64,
        *,
        eps: float = 1e-6,
        hyperbolic: bool = False,
        stabiliser: Stabiliser = "token",
        orthogonal: bool = True,
        lengths: Lengths = "normal",
        redraw: int | None = None,
        seed: int = 0,
    ):
        super().__init__(k_dim, directions, orthogonal, lengths, redraw, seed)
        self.eps, self.hyperbolic = (
            check_in_range("eps", eps, 0.0, math.inf, open_end=True),
            check_flag("hyperbolic", hyperbolic),
        )
        self.stabiliser = check_option("stabiliser", stabiliser, Stabiliser)
        self.by_vector = stabiliser == "token"
        self.unrepeatable = None if self.by_vector else SCALED_BY_CALL

    def features(self, k_dim: int) -> int:
        return super().features(k_dim) * (2 if self.hyperbolic else 1)

    def forward(
        self, x: Float[Tensor, "B H T K"], is_query: bool
    ) -> tuple[Float[Tensor, "B H T F"], Float[Tensor, "B H T"]]:
        x, u = self.project(x)
        u = torch.cat([u, -u], -1) if self.hyperbolic else u
        half = x.square().sum(-1) / 2
        largest = u.max(-1).values  # its gradient is one number; amax has one for each feature
        size = u.shape[-1] ** -0.5
        if self.stabiliser == "token":
            # the constant has no gradient; the features carry its gradient instead
            constant = (largest - half).detach()
            floor = self.eps * size * (largest - half - constant).exp()
            # -half - constant is -largest: exp would magnify rounding errors of |x|^2, so the value leaves them out
            return shifted_exp(u, math.log(size) - largest.detach() - (half - half.detach()), floor), constant
        constant = largest if is_query or not u.shape[2] else largest.amax(-1, keepdim=True).expand_as(largest)
        return shifted_exp(u, math.log(size) - half - constant, constant.new_full((), self.eps * size)), constant


def shifted_exp(
    u: Float[Tensor, "*n F"], shift: Float[Tensor, "*n"], floor: Float[Tensor, "*n"] | Float[Tensor, ""]
) -> Float[Tensor, "*n F"]:
    """Return exp(u + shift) + floor, the features of `FAVOR`, and store only them for the backward pass."""
    if torch.compiler.is_compiling() or is_transformed():
        return (u + shift[..., None]).exp() + floor[..., None]
    return ShiftedExp.apply(u, shift, floor)


class ShiftedExp(torch.autograd.Function):
    """The autograd function of `shifted_exp`: exp(u + shift) + floor, which stores only result and floor."""

    @staticmethod
    def forward(ctx: FunctionCtx, u: Tensor, shift: Tensor, floor: Tensor) -> Tensor:
        phi = (u + shift[..., None]).exp_().add_(floor[..., None])
        ctx.save_for_backward(phi, floor)
        return phi

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        phi, floor = ctx.saved_tensors  # type: ignore[attr-defined]
        by_u = (phi - floor[..., None]) * gradient
        by_floor = gradient.sum(-1) if ctx.needs_input_grad[2] else None  # type: ignore[attr-defined]
        return by_u, by_u.sum(-1), by_floor


SCALED = (
    "the published form scales all keys by the largest key feature of the call, and its eps makes the result "
    "depend on that scale"
)
EXAMPLES = (
    lambda: FAVOR(8, 16),
    lambda: FAVOR(8, 12, eps=0.0, hyperbolic=True, redraw=2, seed=1),
    lambda: FAVOR(8, 12, orthogonal=False),
    lambda: FAVOR(8, 12, lengths="equal"),
    Example(
        lambda: FAVOR(8, 12, eps=1e-4, stabiliser="sequence"),
        breaks={law: SCALED for law in ("chunk", "gradients", "padding", "peek")},
    ),
)
