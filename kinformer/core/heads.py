"""What travels together through attention: queries, keys, and the sizes that parts are asked about."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

Selection = (
    slice | Tensor | None
)  # columns [lo, hi), the same of every row; or chosen ones of each row [B R]; None: all


class Queries(NamedTuple):
    """What asks: one vector per head and token, and what goes with it.

    `pos` are absolute positions, -1 at padding. `extras` are numbers that were projected from the layer's input for
    each head (a gate, a span), `labels` integers of a token (its segment), `tags` integers of a query itself (its
    bucket in each round). `head` numbers the first head, where a mechanism gets a run of a layer's heads: patterns that
    differ by head count on from it. `lazy` are projections that the mechanism computes itself, where it needs them.
    """

    q: Float[Tensor, "B H T K"]
    pos: Int[Tensor, "B #H T"]
    extras: Mapping[str, Float[Tensor, "B H T n"]] = {}  # noqa: RUF012  (NamedTuple defaults are never written to)
    labels: Mapping[str, Int[Tensor, "B T"]] = {}  # noqa: RUF012
    head: int = 0
    tags: Mapping[str, Int[Tensor, "B H T r"]] = {}  # noqa: RUF012
    lazy: Mapping[str, "LazyProjection"] = {}  # noqa: RUF012

    def cut(self, at: Selection) -> "Queries":
        """Some of the queries, with all that goes with them."""
        extras, labels, tags = cut_each(self.extras, at, 2), cut_each(self.labels, at, 1), cut_each(self.tags, at, 2)
        unmade = {name: projection.cut(at) for name, projection in self.lazy.items()}
        return Queries(cut(self.q, at, 2), cut(self.pos, at, 2), extras, labels, self.head, tags, unmade)

    def with_zeroed_padding(self) -> "Queries":
        """These queries with zeros at padding."""
        real = (self.pos >= 0).any(1, keepdim=True)  # heads may have positions of their own
        extras = {name: _zero_padding(side, real) for name, side in self.extras.items()}
        return self._replace(q=_zero_padding(self.q, real), extras=extras)


class Keys(NamedTuple):
    """What is asked: a key and a value per head and token, and what goes with them; all of it is cached together.

    `tags` are integers of a key itself (its bucket in each round). `own` says that the keys are of the sequence that
    asks. Heads of values may be others than heads of keys, and a key may have width 0. `lazy` as of queries.
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
        """Some of the keys, with all that goes with them."""
        extras, labels, tags = cut_each(self.extras, at, 2), cut_each(self.labels, at, 1), cut_each(self.tags, at, 2)
        unmade = {name: projection.cut(at) for name, projection in self.lazy.items()}
        return Keys(
            cut(self.k, at, 2), cut(self.v, at, 2), cut(self.pos, at, 2), extras, labels, tags, self.own, unmade
        )

    def with_zeroed_padding(self, tokens: Bool[Tensor, "B T"] | None = None) -> "Keys":
        """These keys with zeros at padding: at positions without a key and without one of `tokens`."""
        real = (self.pos >= 0).any(1, keepdim=True)
        real = real if tokens is None else real | tokens[:, None]
        extras = {name: _zero_padding(side, real) for name, side in self.extras.items()}
        return self._replace(k=_zero_padding(self.k, real), v=_zero_padding(self.v, real), extras=extras)

    def detach(self) -> "Keys":
        """The same keys, through which nothing learns."""
        extras = {name: side.detach() for name, side in self.extras.items()}
        unmade = {name: projection.detach() for name, projection in self.lazy.items()}
        return self._replace(k=self.k.detach(), v=self.v.detach(), extras=extras, lazy=unmade)


class StateSpec(NamedTuple):
    """What a state is made for: rows, tokens of the longest, and where and how exactly its numbers are kept."""

    batch: int
    length: int
    dtype: torch.dtype
    device: torch.device


class HeadSizes(NamedTuple):
    """The heads and widths of a layer; `cross` where its keys are another sequence's."""

    heads: int
    key_heads: int
    value_heads: int
    k_dim: int
    v_dim: int
    cross: bool = False


class HeadValues(NamedTuple):
    """A number that each head has learned, for people to look at.

    values: one for each head, [1 H 1], or one for each query too. unit: what it is measured in; "" for a share.
    """

    values: Float[Tensor, "#B H #T"]
    unit: str = ""


class LazyProjection(NamedTuple):
    """Numbers W_h x + b_h of each head h that nobody has made: most of them may never be asked for."""

    x: Float[Tensor, "B S D"]
    weight: Float[Tensor, "H n D"]
    bias: Float[Tensor, "H n"] | None

    def cut(self, at: Selection) -> "LazyProjection":
        """The numbers of some places."""
        return self._replace(x=cut(self.x, at, 1))

    def detach(self) -> "LazyProjection":
        return LazyProjection(self.x.detach(), self.weight.detach(), None if self.bias is None else self.bias.detach())

    def materialize(self) -> Float[Tensor, "B H S n"]:
        bias = None if self.bias is None else self.bias.flatten()
        return F.linear(self.x, self.weight.flatten(0, 1), bias).unflatten(2, self.weight.shape[:2]).transpose(1, 2)

    def absorb_queries(
        self, q: Float[Tensor, "B H R n"]
    ) -> tuple[Float[Tensor, "B H R D"], Float[Tensor, "B H R"] | None]:
        """What multiplies x as q the numbers, q.(W x + b) = (W^T q).x + q.b; and q.b."""
        groups = q.unflatten(1, (len(self.weight), -1))  # [B G H/G R n]
        constant = None if self.bias is None else torch.einsum("bgsrn,gn->bgsr", groups, self.bias).flatten(1, 2)
        return torch.einsum("bgsrn,gnd->bgsrd", groups, self.weight).flatten(1, 2), constant

    def project_mean(self, x: Float[Tensor, "B H R D"]) -> Float[Tensor, "B H R n"]:
        """The mean of numbers whose vectors have the mean x."""
        groups = x.unflatten(1, (len(self.weight), -1))
        numbers = torch.einsum("bgsrd,gnd->bgsrn", groups, self.weight)
        return (numbers if self.bias is None else numbers + self.bias[:, None, None]).flatten(1, 2)


def _zero_padding(x: Float[Tensor, "B G N D"], real: Bool[Tensor, "B 1 N"]) -> Float[Tensor, "B G N D"]:
    return torch.where(real[..., None], x, 0.0)


def cut(x: Tensor, at: Selection, dim: int) -> Tensor:
    """x at some places of one dimension, the first of x being the batch."""
    if at is None:
        return x
    if isinstance(at, slice):
        return x[(slice(None),) * dim + (at,)]
    shape = [1] * x.dim()
    shape[0], shape[dim] = at.shape
    return x.take_along_dim(at.view(shape).expand(*x.shape[:dim], -1, *x.shape[dim + 1 :]), dim)


def cut_each(of: Mapping[str, Tensor], at: Selection, dim: int) -> dict[str, Tensor]:
    """Every tensor of a mapping, cut at some places of one dimension."""
    return {name: cut(x, at, dim) for name, x in of.items()}


def number_of_groups(heads: int, groups: int, name: str = "key heads") -> int:
    """How many query heads share a head of keys; ValueError where they cannot share evenly."""
    if not groups or heads % groups:
        raise ValueError(f"{heads} query heads cannot share {groups} {name} evenly; make the first a multiple of them")
    return heads // groups
