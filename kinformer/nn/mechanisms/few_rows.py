"""few_rows: a few queries of each row, which read by projections of their own what was not projected."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.heads import Queries, Unmade, cut
from kinformer.core.pattern import Pattern
from kinformer.core.read import Read, merge


class FewRows(NamedTuple):
    """As many places in every row, those of its queries among them, and their positions.

    `alone`: they read nothing beside what is theirs, so whatever stands in their place may be overwritten.
    """

    places: Int[Tensor, "B R"]
    pos: Int[Tensor, "B 1 R"]
    alone: bool

    def of(self, queries: Queries, q: Float[Tensor, "B H R K"]) -> Queries:
        """These queries, asking q."""
        return queries.cut(self.places)._replace(q=q, pos=self.pos)

    def put(self, read: Read, few: Read) -> Read:
        """The read of a row, in which these queries read their own too."""
        assert read.lse is not None
        if not self.alone:
            few = merge(Read(cut(read.y, self.places, 2), cut(read.lse, self.places, 2)), few)
        assert few.lse is not None
        at = self.places[:, None].expand(-1, read.y.shape[1], -1)  # [B H R]
        y, lse = few.y.to(read.y.dtype), few.lse.to(read.lse.dtype)  # autocast makes some of them wider than others
        return Read(read.y.scatter(2, at[..., None].expand_as(y), y), read.lse.scatter(2, at, lse))


def few_rows(own: Pattern, others: Pattern, pos: Int[Tensor, "B T"]) -> FewRows:
    """The rows that may read a pair of `own`; `others` are the pairs that are read otherwise."""

    def asking(pattern: Pattern, at: Int[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        q = at.clamp_min(0)
        return pattern.cover(q, q, 0 * q, pos.amax().clamp_min(0))[0] & (at >= 0)

    some = asking(own, pos)
    most = max(1, int(some.sum(1).amax()))  # one at least, so that what is learned has gradients
    places = some.int().sort(dim=1, descending=True, stable=True).indices[:, :most]
    at = pos.gather(1, places)
    return FewRows(places, at[:, None], not bool(asking(others, at).any()))


def of_values(read: Read, v: Unmade) -> Float[Tensor, "B H R V"]:
    """The y of values, from that of what they are made of; 0 where there was no key."""
    assert read.lse is not None
    return torch.where(read.lse[..., None] > -torch.inf, v.mean(read.y), 0.0)
