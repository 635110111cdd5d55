"""Update: how tokens enter the sums of linear attention, and what queries read of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kinformer.core.heads import Side, Sizes


class Sums(NamedTuple):
    """All that linear attention keeps of the past.

    The last column of `s` is the normaliser: s exp(level) is the sum of the weights of phi(k) [v, 1]^T. `level` is the
    largest weight so far, in logs, so that no weight overflows and none is lost beside none: -inf before any key.
    """

    s: Float[Tensor, "B G F W"]
    level: Float[Tensor, "B G"]

    def reset(self, rows: Bool[Tensor, " B"]) -> "Sums":
        """The marked rows as before any key."""
        mark = rows.to(self.s.device)
        s, level = (
            torch.where(mark[:, None, None, None], 0.0, self.s),
            torch.where(mark[:, None], -torch.inf, self.level),
        )
        return Sums(s, level)


class Entering(NamedTuple):
    """Tokens of a chunk on their way into the sums, in float32 or better.

    `k` are features, `v` values with a 1 at their end, `weight` the log of what the features left out, -inf where there
    is no key. `here` is where time passes: not at padding.
    """

    k: Float[Tensor, "B G T F"]
    v: Float[Tensor, "B G T W"]
    weight: Float[Tensor, "B G T"]
    here: Bool[Tensor, "B 1 T"]
    sides: Mapping[str, Float[Tensor, "B G T n"]]

    def cut(self, lo: int, hi: int) -> "Entering":
        at = slice(lo, hi)
        sides = {name: side[:, :, at] for name, side in self.sides.items()}
        return Entering(self.k[:, :, at], self.v[:, :, at], self.weight[:, :, at], self.here[:, :, at], sides)


class Update(nn.Module, ABC):
    """What a chunk's tokens do to the sums, and what its queries read: the arithmetic of a rule (sum, gate, delta).

    A step is a chunk of one token. A faster arithmetic of the same rule is another Update.
    """

    def key_sides(self, sizes: Sizes) -> Mapping[str, Side]:
        """What it wants from the layer's input for each token and key head, by name: they are found in `sides`."""
        return {}

    @abstractmethod
    def forward(
        self, sums: Sums, q: Float[Tensor, "B G R T F"] | None, new: Entering, levels: bool
    ) -> tuple[Float[Tensor, "B G R T W"] | None, Float[Tensor, "B G T"] | None, Sums]:
        """What each query reads of the sums before the chunk and of the tokens up to its own, and the sums after it.

        A read times exp(level), level [B G T], is what the query reads, and its last column divides the others. A rule
        whose sums are no weighted mean gives no level, and nothing is divided. Without `levels` every level is 0: for
        maps whose sums are not only divided. Without q only the sums are wanted. Sums may be written in place where
        nothing learns.
        """


class Fading(Update):
    """S_t = keep_t S_(t-1) + add_t phi(k_t) [v_t, 1]^T: write `logs`, the logs of keep and add."""

    @abstractmethod
    def logs(
        self, k: Float[Tensor, "B G T F"], sides: Mapping[str, Float[Tensor, "B G T n"]]
    ) -> tuple[Float[Tensor, "B G T"], Float[Tensor, "B G T"]]:
        """log keep and log add of every token, neither above 0."""

    def forward(
        self, sums: Sums, q: Float[Tensor, "B G R T F"] | None, new: Entering, levels: bool
    ) -> tuple[Float[Tensor, "B G R T W"] | None, Float[Tensor, "B G T"], Sums]:
        keep, add = self.logs(new.k, new.sides)
        faded = keep.masked_fill(~new.here, 0.0).cumsum(-1)
        # key j weighs exp(entered_j + faded_i) for query i >= j, and the sums before exp(level + faded_i)
        entered = add + new.weight - faded
        highest = _highest(sums.level, entered) if levels else -faded
        top = torch.where(highest == -torch.inf, 0.0, highest)
        after = highest[..., -1] + faded[..., -1]
        before = (sums.level[..., None] - top).exp()  # [B G T]; never above 1
        if new.k.shape[2] == 1:
            s = _stepped(sums.s, before, (entered - top).exp(), new)
            read = None if q is None else times(q, s)
            return read, faded + top, Sums(s, after)
        read = None
        if q is not None:
            future = torch.ones(q.shape[3], q.shape[3], dtype=torch.bool, device=q.device).triu(1)
            pairs = (entered[..., None, :] - top[..., :, None]).masked_fill(future, -torch.inf).exp()  # [B G T S]
            inside = times(q, new.k.mT) * pairs[:, :, None]  # [B G R T S]
            read = times(inside, new.v) + times(q * before[:, :, None, :, None], sums.s)
        entering = (entered - top[..., -1:]).exp()
        s = before[..., -1, None, None] * sums.s + (new.k * entering[..., None]).mT @ new.v  # [B G F W]
        return read, faded + top, Sums(s, after)


@torch.no_grad()  # whatever is subtracted is added back
def _highest(level: Float[Tensor, "B G"], entered: Float[Tensor, "B G T"]) -> Float[Tensor, "B G T"]:
    """The largest weight up to each token."""
    return torch.maximum(level[..., None], entered.cummax(-1).values)


def _stepped(s: Tensor, before: Float[Tensor, "B G 1"], weight: Float[Tensor, "B G 1"], new: Entering) -> Tensor:
    """The sums with one more key, in place where nothing learns."""
    k, v = new.k.mT, new.v * weight[..., None]  # [B G F 1], [B G 1 W]
    if torch.is_grad_enabled() and any(x.requires_grad for x in (s, before, k, v)):
        return s * before[..., None] + k * v
    return s.mul_(before[..., None]).addcmul_(k, v)


def times(x: Float[Tensor, "B G R T N"], y: Float[Tensor, "B G N M"]) -> Float[Tensor, "B G R T M"]:
    """x y, the R query heads of a key head side by side."""
    return (x.flatten(2, 3) @ y).unflatten(2, x.shape[2:4])
