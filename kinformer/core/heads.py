"""What travels together through attention: queries, keys, and the sizes that parts are asked about."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

Where = slice | Tensor | None  # columns [lo, hi), the same of every row; or chosen ones of each row [B R]; None: all


class Queries(NamedTuple):
    """What asks: one vector per head and token, and what goes with it.

    `pos` are absolute positions, -1 at padding. `sides` are numbers that were projected from the layer's input for
    each head (a gate, a span), `labels` integers of a token (its segment), `tags` integers of a query itself (its
    bucket in each round). `head` numbers the first head, where a mechanism gets a run of a layer's heads: patterns that
    differ by head count on from it.
    """

    q: Float[Tensor, "B H T K"]
    pos: Int[Tensor, "B #H T"]
    sides: Mapping[str, Float[Tensor, "B H T n"]] = {}  # noqa: RUF012  (NamedTuple defaults are never written to)
    labels: Mapping[str, Int[Tensor, "B T"]] = {}  # noqa: RUF012
    head: int = 0
    tags: Mapping[str, Int[Tensor, "B H T r"]] = {}  # noqa: RUF012

    def cut(self, at: Where) -> "Queries":
        """Some of the queries, with all that goes with them."""
        sides, labels, tags = each(self.sides, at, 2), each(self.labels, at, 1), each(self.tags, at, 2)
        return Queries(cut(self.q, at, 2), cut(self.pos, at, 2), sides, labels, self.head, tags)


class Keys(NamedTuple):
    """What is asked: a key and a value per head and token, and what goes with them; all of it is cached together.

    `tags` are integers of a key itself (its bucket in each round). `own` says that the keys are of the sequence that
    asks. Heads of values may be others than heads of keys, and a key may have width 0.
    """

    k: Float[Tensor, "B G S K"]
    v: Float[Tensor, "B U S V"]
    pos: Int[Tensor, "B #H S"]
    sides: Mapping[str, Float[Tensor, "B G S n"]] = {}  # noqa: RUF012
    labels: Mapping[str, Int[Tensor, "B S"]] = {}  # noqa: RUF012
    tags: Mapping[str, Int[Tensor, "B G S r"]] = {}  # noqa: RUF012
    own: bool = True

    def cut(self, at: Where) -> "Keys":
        """Some of the keys, with all that goes with them."""
        sides, labels, tags = each(self.sides, at, 2), each(self.labels, at, 1), each(self.tags, at, 2)
        return Keys(cut(self.k, at, 2), cut(self.v, at, 2), cut(self.pos, at, 2), sides, labels, tags, self.own)

    def detach(self) -> "Keys":
        """The same keys, through which nothing learns."""
        sides = {name: side.detach() for name, side in self.sides.items()}
        return self._replace(k=self.k.detach(), v=self.v.detach(), sides=sides)


class Room(NamedTuple):
    """What a state is made for: rows, tokens of the longest, and where and how exactly its numbers are kept."""

    batch: int
    length: int
    dtype: torch.dtype
    device: torch.device


class Sizes(NamedTuple):
    """The heads and widths of a layer; `cross` where its keys are another sequence's."""

    heads: int
    key_heads: int
    value_heads: int
    k_dim: int
    v_dim: int
    cross: bool = False


class Side(NamedTuple):
    """Numbers per head that a part wants from the layer's input: `width` of them.

    `like` "q", "k" or "v" starts the matrix that makes them as a copy of the projection's own.
    """

    width: int
    like: str | None = None


def cut(x: Tensor, at: Where, dim: int) -> Tensor:
    """x at some places of one dimension, the first of x being the batch."""
    if at is None:
        return x
    if isinstance(at, slice):
        return x[(slice(None),) * dim + (at,)]
    shape = [1] * x.dim()
    shape[0], shape[dim] = at.shape
    return x.take_along_dim(at.view(shape).expand(*x.shape[:dim], -1, *x.shape[dim + 1 :]), dim)


def each(of: Mapping[str, Tensor], at: Where, dim: int) -> dict[str, Tensor]:
    """Every tensor of a mapping, cut at some places of one dimension."""
    return {name: cut(x, at, dim) for name, x in of.items()}


def number_of_groups(heads: int, groups: int, what: str = "key heads") -> int:
    """How many query heads share a head of keys; ValueError where they cannot share evenly."""
    if not groups or heads % groups:
        raise ValueError(f"{heads} query heads cannot share {groups} {what} evenly; make the first a multiple of them")
    return heads // groups
