"""Pooled: means of a few keys in a row."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.core.checks import at_least
from kinformer.core.heads import Keys
from kinformer.core.shorten import Shorten


class Pooled(Shorten):
    """The mean of each `size` keys that follow one another, and of their values: no parameters, any length.

    Keys are taken in the order of their positions, padding last, and the last mean may be of fewer. A pooled key stands
    where its last one does, or would if there were as many: so under `Causal()` a query reads whole means of what it
    knows, and none where it knows fewer than `size`. Labels and tags end here: a mean has none.

    size: keys of a mean.

    Errors: ValueError for keys whose positions differ by head. Source: the pooling of Liu et al., 2018,
    arXiv:1801.10198, section 4.2.3, with means in place of a convolution.
    """

    def __init__(self, size: int):
        super().__init__()
        self.size = at_least("size", size, 1)

    def forward(self, keys: Keys) -> Keys:
        if keys.pos.shape[1] != 1:
            raise ValueError(f"Pooled got positions by head {list(keys.pos.shape)}; give it keys that heads share")
        pos = keys.pos[:, 0]  # [B S]
        order = torch.where(pos < 0, torch.iinfo(pos.dtype).max, pos).argsort(dim=1, stable=True)
        found = keys.cut(order)
        k, v = (self._means(x, found.pos) for x in (found.k, found.v))
        sides = {name: self._means(side, found.pos) for name, side in found.sides.items()}
        return Keys(k, v, self._ends(found.pos), sides, own=keys.own)

    def _ends(self, pos: Int[Tensor, "B 1 S"]) -> Int[Tensor, "B 1 R"]:
        pieces = self._pieces(pos[..., None], -1)[..., 0]  # [B 1 R size]
        last, missing = pieces.amax(3), (pieces < 0).sum(3)
        return torch.where(last >= 0, last + missing, -1)

    def _means(self, x: Float[Tensor, "B G S N"], pos: Int[Tensor, "B 1 S"]) -> Float[Tensor, "B G R N"]:
        real = self._pieces((pos >= 0).to(x.dtype)[..., None], 0)  # [B 1 R size 1]
        return (self._pieces(x, 0) * real).sum(3) / real.sum(3).clamp_min(1)

    def _pieces(self, x: Tensor, fill: int) -> Tensor:
        """[B G S N] as [B G R size N], the last piece filled up."""
        return F.pad(x, (0, 0, 0, -x.shape[2] % self.size), value=fill).unflatten(2, (-1, self.size))


EXAMPLES = (lambda: Pooled(3),)
