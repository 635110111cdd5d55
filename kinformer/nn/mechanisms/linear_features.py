"""What both forms of linear attention do: features of queries and keys, sums in float32 or better, the quotient."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.feature_map import FeatureMap
from kinformer.core.function_transforms import is_transformed
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec, number_of_groups
from kinformer.core.layer import Context
from kinformer.nn.mechanisms.state_update import KeyFeatures, LinearState


def empty_state(spec: StateSpec, sizes: HeadSizes, features: int) -> LinearState:
    """The sums before any key."""
    check_heads(sizes)
    dtype = torch.promote_types(spec.dtype, torch.float32)
    s = torch.zeros(spec.batch, sizes.key_heads, features, sizes.v_dim + 1, dtype=dtype, device=spec.device)
    return LinearState(s, torch.full((spec.batch, sizes.key_heads), -torch.inf, dtype=dtype, device=spec.device))


def check_heads(sizes: HeadSizes) -> None:
    """ValueError for heads of keys and values whose products cannot be added up."""
    if sizes.value_heads != sizes.key_heads:
        raise ValueError(
            f"linear attention adds up products of {sizes.key_heads} key heads and {sizes.value_heads} value heads; "
            "give as many of both"
        )


def check_limits(ctx: Context) -> None:
    """ValueError for limits of a batch, which sums cannot keep."""
    if ctx.only is not None or ctx.also is not None:
        raise ValueError(
            "linear attention adds keys up before it reads them and cannot honour ctx.only or ctx.also; use Softmax"
        )


def precision(x: Tensor, sums: LinearState | None) -> torch.dtype:
    """float32 at least, and what a state is kept in."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return wide if sums is None else torch.promote_types(wide, sums.s.dtype)


def key_features(map: FeatureMap, keys: Keys, real: Bool[Tensor, "B 1 T"], dtype: torch.dtype) -> KeyFeatures:
    """Features of keys, and their values with a 1 at the end."""
    k, constant = map(keys.k.to(dtype), False)
    weight = constant.masked_fill(keys.pos[:, :1] < 0, -torch.inf)  # after the map, which may give padding a feature
    return KeyFeatures(k, F.pad(keys.v.to(dtype), (0, 1), value=1.0), weight, real, keys.extras)


def query_features(
    map: FeatureMap, queries: Queries, groups: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "B G R T F"], Float[Tensor, "B G R T"]]:
    """Features of queries, R of them to a key head."""
    heads = number_of_groups(queries.q.shape[1], groups)
    by_group = queries.q.to(dtype).unflatten(1, (groups, heads)).flatten(2, 3)  # [B G R*T K]
    phi, constant = map(by_group, True)
    shape = (heads, queries.q.shape[2])
    return phi.unflatten(2, shape), constant.unflatten(2, shape)


def divide_by_weights(
    map: FeatureMap, read: Float[Tensor, "B G R T W"], level: Float[Tensor, "B G R T"] | None, queries: Queries
) -> AttentionOutput:
    """The quotient of sums over keys, whose last column is the sum of weights; padding reads nothing.

    Without a level the sums are no weighted mean: they are what is read, and have no lse.
    """
    read = read.flatten(1, 2)  # [B H T W]
    real = queries.pos[:, :1] >= 0
    y, total = read.split((read.shape[-1] - 1, 1), -1)
    if level is None:
        return AttentionOutput((y * real[..., None]).to(queries.q.dtype), None)
    divisor = map.denominator(total[..., 0])
    # what is so small has lost digits of its own, and its gradients overflow: 8e-31 in float32
    is_divisible = real & (divisor.abs() > 2**26 * torch.finfo(divisor.dtype).tiny)
    safe = torch.where(is_divisible, divisor, torch.inf)
    slow = torch.compiler.is_compiling() or is_transformed()
    y = (y / safe[..., None] if slow else Quotient.apply(y, safe)).to(queries.q.dtype)
    return AttentionOutput(
        y, None if map.signed else torch.where(is_divisible, safe.log() + level.flatten(1, 2), -torch.inf)
    )


class Quotient(torch.autograd.Function):
    """y / divisor, whose backward goes through its own result: half the passes over y.

    The result is kept for that, so whoever changes a read takes a copy, as of any function that keeps what it gives.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, y: Float[Tensor, "*n V"], divisor: Float[Tensor, "*n"]) -> Float[Tensor, "*n V"]:
        quotient = y / divisor[..., None]
        ctx.save_for_backward(quotient, divisor)
        return quotient

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        quotient, divisor = ctx.saved_tensors  # type: ignore[attr-defined]
        of_y = gradient / divisor[..., None]
        return of_y, (of_y * quotient).sum(-1).neg()
