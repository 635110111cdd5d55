"""GroupShortener: shorteners that make one key of each few that follow one another."""

from abc import abstractmethod
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_option
from kinformer.core.heads import Keys
from kinformer.core.shorten import Shorten

Align = Literal["first", "last"]


class GroupShortener(Shorten):
    """One key of each `size` that follow one another, and one value of theirs, at a cost linear in the row.

    It stands where the last of them does, or would if there were as many: so under `Causal()` a query reads whole
    groups of what it knows, and none where it knows fewer than `size`. Labels and tags end here.

    size: keys of a group.
    align: groups are counted from the row's "first" key, so that the last may be of fewer, or from its "last" one, so
        that the first may: then each new token moves all groups, so that a row cannot be read in pieces, and under
        `Causal()` what an early query reads depends on how long the row is.
    """

    gapless = True

    def __init__(self, size: int, align: Align = "first"):
        super().__init__()
        self.size, self.align = check_at_least("size", size, 1), check_option("align", align, Align)
        self.group = self.size if align == "first" else None

    @abstractmethod
    def reduce_groups(
        self, name: str, pieces: Float[Tensor, "B G R size N"], real: Bool[Tensor, "B 1 R size 1"]
    ) -> Float[Tensor, "B G R N"]:
        """What stands for each group of keys ("k"), of values ("v") or of a side by name; not all are `real`."""

    def forward(self, keys: Keys) -> Keys:
        if self.align == "last":
            keys = _padding_first(keys)
        pos = self._pieces(keys.pos[..., None], -1)  # [B 1 R size 1]
        real = pos >= 0
        extras = {name: self.reduce_groups(name, self._pieces(side), real) for name, side in keys.extras.items()}
        k, v = self.reduce_groups("k", self._pieces(keys.k), real), self.reduce_groups("v", self._pieces(keys.v), real)
        return Keys(k, v, self._ends(pos[..., 0]), extras, own=keys.own)

    def _ends(self, pos: Int[Tensor, "B 1 R size"]) -> Int[Tensor, "B 1 R"]:
        last = pos.amax(3)
        if self.align == "last":
            return last
        return torch.where(last >= 0, last + (pos < 0).sum(3), -1)

    def _pieces(self, x: Tensor, fill: int = 0) -> Tensor:
        """[B G S N] as [B G R size N], the piece that is not whole filled up."""
        missing = -x.shape[2] % self.size
        ends = (0, missing) if self.align == "first" else (missing, 0)
        return F.pad(x, (0, 0, *ends), value=fill).unflatten(2, (-1, self.size))


def _padding_first(keys: Keys) -> Keys:
    """Rows whose padding stands last, turned until it stands first."""
    count = (keys.pos[:, 0] >= 0).sum(1, keepdim=True)
    length = max(keys.pos.shape[2], 1)
    at = torch.arange(keys.pos.shape[2], device=keys.pos.device)
    return keys.cut((at + count) % length)
