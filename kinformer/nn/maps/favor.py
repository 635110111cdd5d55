"""FAVOR: positive random features of softmax's kernel."""

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
    "FAVOR(stabiliser='sequence') scales keys by the largest of each call", "give stabiliser=token"
)


class FAVOR(Directions):
    """FAVOR+: positive random features of softmax's kernel, right on average for exp(q.k / sqrt(K)).

    phi(x) = exp(w.x - |x|^2 / 2) / sqrt(m) over m directions w, x being q or k over K^(1/4)

    Choose it for softmax attention at a linear price. Each vector is scaled by its own largest feature, and the scale
    is handed on beside it, so no key knows of a later one, none overflows, and the lse is that of softmax's estimate:
    reads merge with those of `Softmax`.

    eps: added to scaled features, which keeps sums off 0 and is worth nothing beside a feature near the largest. 1e-6
        is that of the authors' TensorFlow code, 1e-4 that of their JAX code; 0, the paper's equation, makes the
        estimate unbiased, but a query whose large features are all tiny in every key then reads nothing.
    hyperbolic: read each direction both ways, which halves m for as many features and lowers the error.
    stabiliser: "token" as above; "sequence" is that of published code (with `eps=1e-4`): keys are scaled by the largest
        of the whole call and |x|^2 / 2 stays in the feature, so through eps a query feels later keys, and padding.
        Float32 sums then lose keys with |k|^2 / sqrt(K) beyond about 250.
    k_dim, directions, orthogonal, lengths, redraw, seed: as in `Directions`; the paper redraws, and its code makes 256.

    Errors: ValueError for heads of another width. Source: Choromanski et al., 2020, arXiv:2009.14794, sections 2.2 to
    2.4.
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
        largest = u.max(-1).values  # its gradient is one number, that of amax as many as there are features
        size = u.shape[-1] ** -0.5
        if self.stabiliser == "token":
            # a number through which nothing learns; what would be learned through it is learned through the features
            constant = (largest - half).detach()
            floor = self.eps * size * (largest - half - constant).exp()
            # -half - constant is -largest: terms of |x|^2, whose rounding exp would raise, stay out of the value
            return shifted_exp(u, math.log(size) - largest.detach() - (half - half.detach()), floor), constant
        constant = largest if is_query or not u.shape[2] else largest.amax(-1, keepdim=True).expand_as(largest)
        return shifted_exp(u, math.log(size) - half - constant, constant.new_full((), self.eps * size)), constant


def shifted_exp(
    u: Float[Tensor, "*n F"], shift: Float[Tensor, "*n"], floor: Float[Tensor, "*n"] | Float[Tensor, ""]
) -> Float[Tensor, "*n F"]:
    """exp(u + shift) + floor."""
    if torch.compiler.is_compiling() or is_transformed():
        return (u + shift[..., None]).exp() + floor[..., None]
    return ShiftedExp.apply(u, shift, floor)


class ShiftedExp(torch.autograd.Function):
    """The same in one array, keeping for its backward the features alone, which are kept anyway."""

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


SCALED = "the published form scales every key by the largest of the call, which its eps lets be felt"
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
