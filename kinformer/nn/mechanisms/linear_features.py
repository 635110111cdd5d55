"""Shared functions of linear attention: features, sums in float32 or wider, and the quotient."""

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
    """Return the decoding state of linear attention before the first key: empty sums.

    spec: batch size, dtype and device of the state.
    sizes: head sizes of the layer.
    features: number of features of a key.
    """
    check_heads(sizes)
    dtype = torch.promote_types(spec.dtype, torch.float32)
    s = torch.zeros(spec.batch, sizes.key_heads, features, sizes.v_dim + 1, dtype=dtype, device=spec.device)
    return LinearState(s, torch.full((spec.batch, sizes.key_heads), -torch.inf, dtype=dtype, device=spec.device))


def check_heads(sizes: HeadSizes) -> None:
    """Raise ValueError if `sizes` has different numbers of key heads and value heads.

    The sums of linear attention need one value head for each key head.
    """
    if sizes.value_heads != sizes.key_heads:
        raise ValueError(
            f"linear attention needs as many key heads as value heads: got {sizes.key_heads} key heads and "
            f"{sizes.value_heads} value heads"
        )


def check_limits(ctx: Context) -> None:
    """Raise ValueError if `ctx` has `only` or `also`, because sums cannot leave out keys."""
    if ctx.only is not None or ctx.also is not None:
        raise ValueError(
            "linear attention does not support ctx.only or ctx.also: it sums keys before queries read them. Use Softmax"
        )


def precision(x: Tensor, sums: LinearState | None) -> torch.dtype:
    """Return the dtype for the sums over keys: float32 or wider, and at least as wide as the state.

    x: keys of the call.
    sums: state before the call, or None.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    return wide if sums is None else torch.promote_types(wide, sums.s.dtype)


def key_features(map: FeatureMap, keys: Keys, real: Bool[Tensor, "B 1 T"], dtype: torch.dtype) -> KeyFeatures:
    """Return the features of keys, and their values with an appended 1, which sums to the divisor.

    map: feature map.
    keys: keys and values of the call.
    real: False at padding, [B, 1, T].
    dtype: dtype of the result.
    """
    k, constant = map(keys.k.to(dtype), False)
    # after the map, because the map may give padding a feature
    weight = constant.masked_fill(keys.pos[:, :1] < 0, -torch.inf)
    return KeyFeatures(k, F.pad(keys.v.to(dtype), (0, 1), value=1.0), weight, real, keys.extras)


def query_features(
    map: FeatureMap, queries: Queries, groups: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "B G R T F"], Float[Tensor, "B G R T"]]:
    """Return the features of queries, grouped by key head with R query heads each.

    map: feature map.
    queries: queries of the call.
    groups: number of key heads.
    dtype: dtype of the result.
    """
    heads = number_of_groups(queries.q.shape[1], groups)
    by_group = queries.q.to(dtype).unflatten(1, (groups, heads)).flatten(2, 3)  # [B G R*T K]
    phi, constant = map(by_group, True)
    shape = (heads, queries.q.shape[2])
    return phi.unflatten(2, shape), constant.unflatten(2, shape)


def divide_by_weights(
    map: FeatureMap, read: Float[Tensor, "B G R T W"], level: Float[Tensor, "B G R T"] | None, queries: Queries
) -> AttentionOutput:
    """Divide the sums of each query by its sum of weights, in their last column; padding gets 0.

    map: feature map, which defines the denominator.
    read: sums for each query, [B, G, R, T, W]; the last column is the sum of weights.
    level: log of the factor that was taken out of the weights, [B, G, R, T]. Without a level, the sums are returned
        undivided and have no lse.
    queries: queries of the call.
    """
    read = read.flatten(1, 2)  # [B H T W]
    real = queries.pos[:, :1] >= 0
    y, total = read.split((read.shape[-1] - 1, 1), -1)
    if level is None:
        return AttentionOutput((y * real[..., None]).to(queries.q.dtype), None)
    divisor = map.denominator(total[..., 0])
    # smaller divisors have lost digits, and their gradients overflow: 8e-31 in float32
    is_divisible = real & (divisor.abs() > 2**26 * torch.finfo(divisor.dtype).tiny)
    safe = torch.where(is_divisible, divisor, torch.inf)
    slow = torch.compiler.is_compiling() or is_transformed()
    y = (y / safe[..., None] if slow else Quotient.apply(y, safe)).to(queries.q.dtype)
    return AttentionOutput(
        y, None if map.signed else torch.where(is_divisible, safe.log() + level.flatten(1, 2), -torch.inf)
    )


class Quotient(torch.autograd.Function):
    """Quotient y / divisor with a backward pass through its own result, which halves the passes over y.

    The result is saved for the backward pass, so code that changes it in place must copy it first.
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
