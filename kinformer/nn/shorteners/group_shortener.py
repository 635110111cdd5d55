"""GroupShortener: base class of shorteners that merge consecutive keys."""

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
    """Base class of shorteners that merge each group of `size` consecutive keys into one key.

    The cost is linear in the row. Subclasses implement `reduce_groups`. A merged key has the position of the last key
    of its group; an incomplete group counts as if it were full. Under `Causal()` a query therefore reads only groups
    that end at or before it; with align="first" the first size - 1 queries read none. Merged keys have no labels (such
    as segments) and no hash buckets.

    size: number of keys of a group.
    align: "first" forms groups from the row's first key on, so the last group may be smaller. "last" forms them
        backwards from its last key, so the first group may be smaller. With "last" each new token moves all groups: a
        row cannot be read in pieces, and under `Causal()` the keys of early queries depend on the row length.
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
        """Return one vector per group, from its keys, its values or an additional projection of its keys.

        name: "k" for keys, "v" for values, or the name of the additional projection.
        pieces: vectors of each group.
        real: False for places of a group without a key.
        """

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
        """Reshape [B G S N] to [B G R size N], with `fill` in the missing places of the incomplete group."""
        missing = -x.shape[2] % self.size
        ends = (0, missing) if self.align == "first" else (missing, 0)
        return F.pad(x, (0, 0, *ends), value=fill).unflatten(2, (-1, self.size))


def _padding_first(keys: Keys) -> Keys:
    """Roll each row so that its padding moves from the end to the start."""
    count = (keys.pos[:, 0] >= 0).sum(1, keepdim=True)
    length = max(keys.pos.shape[2], 1)
    at = torch.arange(keys.pos.shape[2], device=keys.pos.device)
    return keys.cut((at + count) % length)
