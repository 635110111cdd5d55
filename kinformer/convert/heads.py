"""The conversion `heads`: fewer heads of keys and values, as in grouped and multi-query attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from kinformer.convert.support.changed_model import attention_layers, has_keyword, record_change, with_keywords
from kinformer.core.checks import check_at_least, check_multiple, check_option
from kinformer.core.conversion import Conversion, Progress, Promise, WeightSource
from kinformer.core.eval_mode import evaluating
from kinformer.core.model import Model, display_name
from kinformer.nn.aggregations.out_projection import OutProjection
from kinformer.nn.attention import Attention
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.projections.qkv import QKV

Merge = Literal["mean", "svd"]
SMALLEST = 1e-10  # eigenvalues below this part of the largest one are raised to it; singular values are their roots


@dataclass(frozen=True)
class HeadsConversion(Conversion):
    """Replace the heads of keys and values by fewer ones, one for each group.

    Choose it for a smaller cache and faster decoding. The converted model is poor until it is adapted: give data and
    minutes. Grouped-query attention needs about 5% of the training of the source (Ainslie et al.).

    With merge="mean" a new head is the mean of its group, and queries and output stay as they are. Heads of a trained
    model are not aligned with each other, so their mean is like none of them. With merge="svd" and data, a new head is
    the head with the smallest squared error on the inputs of its layer, where queries and output may change with it.
    With data, choose "svd": adaptation then starts much nearer to the source.

    O_h is the output matrix of query head h, Q_h its query matrix, and K_g and V_g are the matrices of key head g. For
    values, the products O_h V_g of all query heads h of a group are stacked, and the new values are the first right
    singular vectors of the stack. For keys the same is done with the products Q_h^T K_g. Under rotary positions a pair
    of dimensions is one complex number, and each pair is merged separately, so that the products hold at every
    distance. All products are weighted by the second moment of the inputs that the layer has in the source.

    key_heads: number of heads of keys and values; it divides the number that the source has.
    merge: "mean" as in the paper, or "svd", which needs data; without data its heads are means too.

    Source: Ainslie et al., 2023, arXiv:2305.13245, section 2.1; Shazeer, 2019, arXiv:1911.02150. No paper for "svd".
    """

    spellings: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"gqa": {"key_heads": 2}, "mqa": {"key_heads": 1}, "multi_query": {"key_heads": 1}}
    )

    key_heads: int = 1
    merge: Merge = "mean"

    def restructure(self, model: Model) -> Model:
        for name, layer in attention_layers(model):
            self._check(model, name, layer)
        if has_keyword(model, "key_heads"):
            return with_keywords(model, key_heads=self.key_heads)
        for _, layer in attention_layers(model):
            layer.projection = self._fewer(cast(QKV, layer.projection))
            layer.sizes = layer.projection.sizes(False)
        return record_change(model, self)

    def weight_sources(self, source: Model, converted: Model) -> Mapping[str, WeightSource]:
        sources = {}
        for name, layer in attention_layers(source):
            if layer.sizes.key_heads == self.key_heads:
                continue
            average = partial(self._average, cast(QKV, layer.projection))
            for parameter in ("weight", "bias"):
                if getattr(layer.projection.qkv, parameter) is not None:
                    full = f"{name}.projection.qkv.{parameter}"
                    fate = "averaged" if self.merge == "mean" else "merged"
                    sources[full] = WeightSource(fate, (full,), average)
            if self.merge == "svd":
                output = f"{name}.aggregation.linear.weight"
                sources[output] = WeightSource("merged", (output,))
        return sources

    @torch.no_grad()
    def fit(self, source: Model, converted: Model, rows: Int[Tensor, "N T"], progress: Progress) -> None:
        """Replace the means by the heads with the smallest error on these rows, if merge="svd"."""
        if self.merge == "mean":
            return
        layers = zip(attention_layers(source), attention_layers(converted), strict=True)
        pairs = [(old, new) for (_, old), (_, new) in layers if old.sizes.key_heads != self.key_heads]
        sums: dict[Attention, Tensor] = {}

        def add(old: Any, arguments: tuple[Any, ...]) -> None:
            x = arguments[0].flatten(0, -2).double()
            x = torch.cat([x, torch.ones_like(x[:, :1])], 1) if old.projection.bias else x
            sums[old] = sums.get(old, 0) + x.T @ x / len(x)

        hooks = [old.register_forward_pre_hook(add) for old, _ in pairs]
        try:
            with evaluating(source):
                for number, row in enumerate(rows, 1):
                    cast(Any, source).hidden(row[None])
                    progress("read the layers", number / len(rows))
        finally:
            for hook in hooks:
                hook.remove()
        for number, (old, new) in enumerate(pairs, 1):
            for tensor, value in zip(_tensors(new), self._merge(old, sums.pop(old) / len(rows)), strict=True):
                tensor.copy_(value)
            progress("merge heads", number / len(pairs))

    def without_data(self) -> str:
        return "without data the new heads are means" if self.merge == "svd" else ""

    def promise(self, model: Model) -> Promise:
        heads = {layer.sizes.key_heads for _, layer in attention_layers(model)}
        if heads == {self.key_heads}:
            return Promise(torch.inf, "the number of heads stays as it is")
        return Promise(0, "each new head replaces several, so adapt the model first")

    def _check(self, model: Model, name: str, layer: Attention) -> None:
        if type(layer.projection) is not QKV or layer.sizes.value_heads != layer.sizes.key_heads:
            raise ValueError(
                f"cannot merge the heads of {name} in this {display_name(model)}: got "
                f"{type(layer.projection).__name__} with {layer.sizes.key_heads} heads of keys and "
                f"{layer.sizes.value_heads} of values, expected QKV with equal numbers. Convert a model such as gpt "
                "or llama"
            )
        if layer.extras or layer.key_extras or list(layer.mechanism.parameters()):
            raise ValueError(
                f"cannot merge the heads of {name} in this {display_name(model)}: {type(layer.mechanism).__name__} has "
                "weights for each head. Convert a model with plain Softmax attention"
            )
        if check_option("merge", self.merge, Merge) == "svd":
            _check_linear(model, name, layer)
        check_at_least("key_heads", self.key_heads, 1)
        check_multiple("heads of keys", layer.sizes.key_heads, "key_heads", self.key_heads)

    def _fewer(self, old: QKV) -> QKV:
        """Return a projection with fewer heads of keys and values, with new weights."""
        new = QKV(
            old.d,
            old.heads,
            key_heads=self.key_heads,
            head_dim=old.k_dim,
            v_dim=old.v_dim,
            rotation=old.rotation,
            bias=old.bias,
        )
        new.q_norm, new.k_norm = old.q_norm, old.k_norm
        return new.to(old.qkv.weight)

    def _average(self, projection: QKV, stacked: Tensor) -> Tensor:
        """Return stacked rows of queries, keys and values in which each group of key heads has become one."""
        q, k, v = stacked.split(projection.widths)

        def mean(rows: Tensor, width: int) -> Tensor:
            groups = rows.unflatten(0, (self.key_heads, -1, width))  # [G heads width *]
            return groups.mean(1).flatten(0, 1)

        return torch.cat([q, mean(k, projection.k_dim), mean(v, projection.v_dim)])

    def _merge(self, layer: Attention, moment: Float[Tensor, "E E"]) -> list[Tensor]:
        """Return the output matrix, the stacked matrix and its biases with fewer heads of keys and values.

        layer: the layer of the source.
        moment: mean of x x^T over inputs x, each with a 1 appended if there are biases.
        """
        projection, (output, *stacked) = cast(QKV, layer.projection), [x.double() for x in _tensors(layer)]
        rows = torch.cat([stacked[0], stacked[1][:, None]], 1) if len(stacked) > 1 else stacked[0]  # [N E]
        q, k, v = (
            each.unflatten(0, (self.key_heads, -1, width))  # [G heads width E]
            for each, width in zip(
                rows.split(projection.widths), (projection.k_dim, projection.k_dim, projection.v_dim), strict=True
            )
        )
        q = q.unflatten(1, (k.shape[1], -1))  # [G r s K E]
        columns = output.unflatten(1, (self.key_heads, k.shape[1], -1, projection.v_dim))  # [D G r s V]
        back, value = _share(v, torch.einsum("dgrsv,dgrsw->grvw", columns, columns), moment)
        columns = torch.einsum("dgrsv,grvw->dgrsw", columns, back)
        turned = projection.rotation.turned if isinstance(projection.rotation, Rotary) else 0
        q_parts, k_parts = [], []
        if turned:
            assert isinstance(projection.rotation, Rotary)
            order = _pair_order(projection.rotation)
            # each pair of dimensions is a head of one complex number: [G planes r .. 1 E]
            turns, turned_keys = (_as_complex(x, order).movedim(-2, 1).unsqueeze(-2) for x in (q, k))
            new_q, new_k = _share_keys(turns, turned_keys, moment)
            q_parts.append(_as_real(new_q.squeeze(-2).movedim(1, -2), order))
            k_parts.append(_as_real(new_k.squeeze(-2).movedim(1, -2), order))
        if turned < projection.k_dim:
            new_q, new_k = _share_keys(q[..., turned:, :], k[..., turned:, :], moment)
            q_parts.append(new_q)
            k_parts.append(new_k)
        new_rows = torch.cat(
            [torch.cat(q_parts, -2).flatten(0, 3), torch.cat(k_parts, -2).flatten(0, 1), value.flatten(0, 1)]
        )
        new = [columns.flatten(1), *((new_rows[:, :-1], new_rows[:, -1]) if len(stacked) > 1 else (new_rows,))]
        return new


def _tensors(layer: Any) -> list[Tensor]:
    """Return the output matrix, the stacked matrix, and its biases if it has some."""
    return [layer.aggregation.linear.weight, *layer.projection.qkv.parameters()]


def _share(
    maps: Inexact[Tensor, "*g r k E"], weight: Inexact[Tensor, "*g r k k"], moment: Float[Tensor, "E E"]
) -> tuple[Tensor, Tensor]:
    """Return maps A_r [*g r k k] and one map B [*g k E] whose products A_r B are nearest to the given maps.

    The error is the mean over inputs x of sum_r |W_r^(1/2) (M_r - A_r B) x|^2.

    maps: maps M_r of the heads of a group, real or complex.
    weight: matrices W_r.
    moment: mean of x x^T.
    """
    *_, heads, width, _ = maps.shape
    stack = maps.flatten(-3, -2)  # [*g rk E]
    gram = stack @ moment.to(stack) @ stack.mH
    values, vectors = torch.linalg.eigh(gram)
    largest = values[..., -1:]
    # maps that are zero on all inputs have no scale, and any positive one gives finite maps in their place
    is_zero = largest <= torch.finfo(largest.dtype).tiny / SMALLEST
    root = torch.where(is_zero, 1.0, values.clamp_min(largest * SMALLEST)).sqrt()
    factor = vectors * root[..., None, :]  # gram = factor factor^H, and the maps are factor times orthonormal maps
    parts = factor.unflatten(-2, (heads, width))  # [*g r k rk]
    importance = torch.einsum("...rkn,...rkj,...rjm->...nm", parts.conj(), weight.to(stack), parts)
    first = torch.linalg.eigh(importance).eigenvectors[..., -width:]  # [*g rk k]
    mean = gram.diagonal(dim1=-2, dim2=-1).real.mean(-1, keepdim=True)
    size = torch.where(is_zero, 1.0, mean).sqrt()[..., None]  # as large as the old maps
    back = parts @ first[..., None, :, :] / size[..., None]
    shared = size * first.mH @ (vectors / root[..., None, :]).mH @ stack
    return back, shared


def _share_keys(q: Tensor, k: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
    """Return new queries [*g r s k E] and the keys [*g k E] of each group, for the same products as far as possible."""
    weight = torch.einsum("...rske,ef,...rsjf->...rkj", q, moment.to(q), q.conj())
    back, shared = _share(k, weight, moment)
    return torch.einsum("...rkj,...rske->...rsje", back.conj(), q), shared


def _pair_order(rotation: Rotary) -> list[int]:
    """Return the dimensions that rotate, the first of each pair and then the second of each pair."""
    if rotation.pairs == "half":
        return list(range(rotation.turned))
    return [*range(0, rotation.turned, 2), *range(1, rotation.turned, 2)]


def _as_complex(x: Float[Tensor, "*n K E"], order: list[int]) -> Tensor:
    """Return each pair of dimensions as one complex number [*n K/2 E]."""
    first, second = x[..., order, :].chunk(2, -2)
    return torch.complex(first, second)


def _as_real(x: Tensor, order: list[int]) -> Tensor:
    """Return the dimensions of complex numbers in their places."""
    dimensions = torch.cat([x.real, x.imag], -2)
    new = torch.empty_like(dimensions)
    new[..., order, :] = dimensions
    return new


def _check_linear(model: Model, name: str, layer: Attention) -> None:
    """Raise ValueError if queries and keys are no linear maps up to a rotation, or the output is none."""
    projection = cast(QKV, layer.projection)
    problem = None
    if projection.q_norm is not None:
        problem = f"its queries and keys have {type(projection.q_norm).__name__}"
    elif projection.rotation is not None and not isinstance(projection.rotation, Rotary):
        problem = f"its rotation is {type(projection.rotation).__name__}"
    elif type(layer.aggregation) is not OutProjection:
        problem = f"its aggregation is {type(layer.aggregation).__name__}"
    if problem is not None:
        raise ValueError(
            f"cannot merge the heads of {name} in this {display_name(model)} by svd: {problem}, expected linear maps. "
            "Give merge='mean'"
        )
