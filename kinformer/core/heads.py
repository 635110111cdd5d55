"""heads: queries, keys and values by head, and the sizes of a layer and of its decoding state."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

Selection = slice | Tensor | None  # columns [lo, hi) of every row; or chosen columns of each row [B R]; None for all


class Queries(NamedTuple):
    """Query vectors by head and token, with their positions and further values.

    q: one vector per head and token.
    pos: absolute positions, -1 at padding.
    extras: values projected from the layer's input for each head (a gate, a span).
    labels: integers that label each token, such as the number of its segment.
    head: the index of the first of these heads in the layer, if a mechanism gets only some of the layer's heads. A
        pattern that differs from head to head needs it.
    tags: integers that the mechanism computes for each query, such as its hash bucket in each of r rounds.
    lazy: projections that the mechanism computes itself when it needs them.
    """

    q: Float[Tensor, "B H T K"]
    pos: Int[Tensor, "B #H T"]
    extras: Mapping[str, Float[Tensor, "B H T n"]] = {}  # noqa: RUF012  (NamedTuple defaults are never written to)
    labels: Mapping[str, Int[Tensor, "B T"]] = {}  # noqa: RUF012
    head: int = 0
    tags: Mapping[str, Int[Tensor, "B H T r"]] = {}  # noqa: RUF012
    lazy: Mapping[str, "LazyProjection"] = {}  # noqa: RUF012

    def cut(self, at: Selection) -> "Queries":
        """Return the queries at the places `at`, with all their fields."""
        extras, labels, tags = cut_each(self.extras, at, 2), cut_each(self.labels, at, 1), cut_each(self.tags, at, 2)
        unmade = {name: projection.cut(at) for name, projection in self.lazy.items()}
        return Queries(cut(self.q, at, 2), cut(self.pos, at, 2), extras, labels, self.head, tags, unmade)

    def with_zeroed_padding(self) -> "Queries":
        """Return these queries with zeros at padding."""
        real = (self.pos >= 0).any(1, keepdim=True)  # heads may have positions of their own
        extras = {name: _zero_padding(side, real) for name, side in self.extras.items()}
        return self._replace(q=_zero_padding(self.q, real), extras=extras)


class Keys(NamedTuple):
    """Keys and values by head and token, with their positions and further values; all are cached together.

    The number of value heads may differ from the number of key heads, and keys may have width 0.

    k, v: one key and one value per head and token.
    pos: absolute positions, -1 at padding.
    extras: values projected from the source for each key head.
    labels: integers that label each token, such as the number of its segment.
    tags: integers that the mechanism computes for each key, such as its hash bucket in each of r rounds.
    own: True if keys and queries belong to the same sequence (self-attention).
    lazy: projections that the mechanism computes itself when it needs them.
    """

    k: Float[Tensor, "B G S K"]
    v: Float[Tensor, "B U S V"]
    pos: Int[Tensor, "B #H S"]
    extras: Mapping[str, Float[Tensor, "B G S n"]] = {}  # noqa: RUF012
    labels: Mapping[str, Int[Tensor, "B S"]] = {}  # noqa: RUF012
    tags: Mapping[str, Int[Tensor, "B G S r"]] = {}  # noqa: RUF012
    own: bool = True
    lazy: Mapping[str, "LazyProjection"] = {}  # noqa: RUF012

    def cut(self, at: Selection) -> "Keys":
        """Return the keys at the places `at`, with all their fields."""
        extras, labels, tags = cut_each(self.extras, at, 2), cut_each(self.labels, at, 1), cut_each(self.tags, at, 2)
        unmade = {name: projection.cut(at) for name, projection in self.lazy.items()}
        return Keys(
            cut(self.k, at, 2), cut(self.v, at, 2), cut(self.pos, at, 2), extras, labels, tags, self.own, unmade
        )

    def with_zeroed_padding(self, tokens: Bool[Tensor, "B T"] | None = None) -> "Keys":
        """Return these keys with zeros at padding.

        A position is padding if it has no key and, when `tokens` is given, `tokens` is False there.
        """
        real = (self.pos >= 0).any(1, keepdim=True)
        real = real if tokens is None else real | tokens[:, None]
        extras = {name: _zero_padding(side, real) for name, side in self.extras.items()}
        return self._replace(k=_zero_padding(self.k, real), v=_zero_padding(self.v, real), extras=extras)

    def detach(self) -> "Keys":
        """Return the same keys, detached from the autograd graph."""
        extras = {name: side.detach() for name, side in self.extras.items()}
        unmade = {name: projection.detach() for name, projection in self.lazy.items()}
        return self._replace(k=self.k.detach(), v=self.v.detach(), extras=extras, lazy=unmade)


class StateSpec(NamedTuple):
    """The size, dtype and device of a decoding state or a memory.

    batch: number of rows.
    length: number of tokens of the longest row.
    dtype, device: dtype and device of the state's numbers.
    """

    batch: int
    length: int
    dtype: torch.dtype
    device: torch.device


class HeadSizes(NamedTuple):
    """The numbers of heads and the widths of a layer.

    heads, key_heads, value_heads: numbers of query heads, key heads and value heads.
    k_dim, v_dim: widths of one key and of one value.
    cross: True if the keys belong to another sequence (cross-attention).
    """

    heads: int
    key_heads: int
    value_heads: int
    k_dim: int
    v_dim: int
    cross: bool = False


class HeadValues(NamedTuple):
    """A learned number of each head, such as its attention span, for reports.

    values: one number for each head, [1 H 1], or one for each query too.
    unit: the unit of the number; "" for a fraction from 0 to 1.
    """

    values: Float[Tensor, "#B H #T"]
    unit: str = ""


class LazyProjection(NamedTuple):
    """A projection W_h x + b_h by head that is not computed yet, because most of it may never be needed.

    x: the input, [B S D].
    weight, bias: W_h and b_h of each head h; `bias` may be None.
    """

    x: Float[Tensor, "B S D"]
    weight: Float[Tensor, "H n D"]
    bias: Float[Tensor, "H n"] | None

    def cut(self, at: Selection) -> "LazyProjection":
        """Return the projection of only the places `at` of x."""
        return self._replace(x=cut(self.x, at, 1))

    def detach(self) -> "LazyProjection":
        return LazyProjection(self.x.detach(), self.weight.detach(), None if self.bias is None else self.bias.detach())

    def materialize(self) -> Float[Tensor, "B H S n"]:
        bias = None if self.bias is None else self.bias.flatten()
        return F.linear(self.x, self.weight.flatten(0, 1), bias).unflatten(2, self.weight.shape[:2]).transpose(1, 2)

    def absorb_queries(
        self, q: Float[Tensor, "B H R n"]
    ) -> tuple[Float[Tensor, "B H R D"], Float[Tensor, "B H R"] | None]:
        """Return W^T q and q.b, so that products with the projection need only x.

            q.(W x + b) = (W^T q).x + q.b

        The second result is None if there is no bias.
        """
        groups = q.unflatten(1, (len(self.weight), -1))  # [B G H/G R n]
        constant = None if self.bias is None else torch.einsum("bgsrn,gn->bgsr", groups, self.bias).flatten(1, 2)
        return torch.einsum("bgsrn,gnd->bgsrd", groups, self.weight).flatten(1, 2), constant

    def project_mean(self, x: Float[Tensor, "B H R D"]) -> Float[Tensor, "B H R n"]:
        """Project the means x of input vectors, which gives the means of their projections."""
        groups = x.unflatten(1, (len(self.weight), -1))
        numbers = torch.einsum("bgsrd,gnd->bgsrn", groups, self.weight)
        return (numbers if self.bias is None else numbers + self.bias[:, None, None]).flatten(1, 2)


def _zero_padding(x: Float[Tensor, "B G N D"], real: Bool[Tensor, "B 1 N"]) -> Float[Tensor, "B G N D"]:
    return torch.where(real[..., None], x, 0.0)


def cut(x: Tensor, at: Selection, dim: int) -> Tensor:
    """Select places of one dimension of x; the first dimension of x is the batch.

    at: a slice for every row, indices of each row [B R], or None for all.
    dim: the dimension in which to select.
    """
    if at is None:
        return x
    if isinstance(at, slice):
        return x[(slice(None),) * dim + (at,)]
    shape = [1] * x.dim()
    shape[0], shape[dim] = at.shape
    return x.take_along_dim(at.view(shape).expand(*x.shape[:dim], -1, *x.shape[dim + 1 :]), dim)


def cut_each(of: Mapping[str, Tensor], at: Selection, dim: int) -> dict[str, Tensor]:
    """Select places of one dimension of every tensor of a mapping; the first dimension is the batch.

    of: tensors by name.
    at: a slice for every row, indices of each row [B R], or None for all.
    dim: the dimension.
    """
    return {name: cut(x, at, dim) for name, x in of.items()}


def number_of_groups(heads: int, groups: int, name: str = "key heads") -> int:
    """Return the number of query heads that share each key head.

    heads, groups: numbers of query heads and of key heads.
    name: the words for `groups` in the message.

    Errors: ValueError if `heads` is not a multiple of `groups`.
    """
    if not groups or heads % groups:
        raise ValueError(
            f"{heads} query heads cannot share {groups} {name} evenly; make the first number a multiple of the second, "
            "or pass tensors [B, T, H, K] as x.transpose(1, 2)"
        )
    return heads // groups
