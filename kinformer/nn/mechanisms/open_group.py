"""OpenGroup: a row read in pieces, of whose keys each few make one: which make one now, and which are kept."""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.cache import LAST
from kinformer.core.numbering import after


class OpenGroup(NamedTuple):
    """What becomes of kept and new keys, by their positions: decided once per forward, for all layers.

    order: columns of both in the order of positions, padding last; pos: their positions there.
    ends: where each group of them that is whole stands, -1 where none is.
    left: which of the ordered columns are of the group that is not whole; left_pos: their positions, -1 of none.
    now: each row's next position.
    """

    order: Int[Tensor, "B N"]
    pos: Int[Tensor, "B 1 N"]
    ends: Int[Tensor, "B R"]
    left: Int[Tensor, "B C"]
    left_pos: Int[Tensor, "B C"]
    now: Int[Tensor, " B"]

    @classmethod
    def of(cls, kept: Int[Tensor, "B C"], now: Int[Tensor, " B"], new: Int[Tensor, "B T"], size: int) -> "OpenGroup":
        """Positions of the keys that are kept, and of new ones; -1 for none."""
        order, pos = ordered(torch.cat([kept, new.to(kept.dtype)], 1))
        length = pos.shape[1]
        count = (pos >= 0).sum(1, keepdim=True)
        left = count // size * size + torch.arange(size - 1, device=pos.device)  # [B C]
        at = left.clamp_max(max(length - 1, 0))
        left_pos = torch.where(left < count, pos.take_along_dim(at, 1), -1)
        ends = F.pad(pos, (0, -length % size), value=-1)[:, size - 1 :: size]
        return cls(order, pos[:, None], ends, at, left_pos, after(now, new))


def ordered(pos: Int[Tensor, "B S"]) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B S"]]:
    """The columns in the order of their positions, padding last; the positions in that order."""
    order = torch.where(pos < 0, LAST, pos).argsort(dim=1, stable=True)
    return order, pos.take_along_dim(order, 1)
