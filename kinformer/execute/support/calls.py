"""calls: what a plan is made of: tiles of queries and of keys, and which pairs of them are allowed."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.core.pattern import Pattern
from kinformer.execute.support.lines import Line

KEPT = 1 << 25  # numbers of masks that a plan keeps for the next layer and the backward pass


class Tiles(NamedTuple):
    """Equal pieces of a row: place i of tile t is start + t * step + i * inner."""

    start: int
    size: int
    many: int = 1
    step: int = 0
    inner: int = 1

    def places(self, device: torch.device) -> Int[Tensor, "n size"]:
        tile, place = torch.arange(self.many, device=device)[:, None], torch.arange(self.size, device=device)
        return self.start + tile * self.step + place * self.inner


class Table(NamedTuple):
    """Pieces of a row of `length` places that are made of its blocks, by number."""

    blocks: Int[Tensor, "n m"]
    block: int
    length: int

    @property
    def many(self) -> int:
        return self.blocks.shape[0]

    @property
    def size(self) -> int:
        return self.blocks.shape[1] * self.block

    @property
    def whole(self) -> bool:
        """Does no block end early?"""
        return int(self.blocks.max() + 1) * self.block <= self.length

    def places(self, device: torch.device) -> Int[Tensor, "n size"]:
        """The number of each place; behind the end of the row that of the last one."""
        return self._numbers().clamp_max(self.length - 1).to(device)

    def real(self, device: torch.device) -> Bool[Tensor, "n size"]:
        """Is a place not behind the end of the row?"""
        return (self._numbers() < self.length).to(device)

    def _numbers(self) -> Int[Tensor, "n size"]:
        at = torch.arange(self.block, device=self.blocks.device)
        return (self.blocks[:, :, None] * self.block + at).flatten(1)


class Call(NamedTuple):
    """Queries of tile t read the keys of tile t: all of them (`where` None), or those that the pattern allows.

    `causal`: the pattern allows what stands at the same place of the tile or before it, so a kernel needs no mask.
    """

    q: Tiles | Table
    k: Tiles | Table
    where: Pattern | None
    causal: bool = False

    @property
    def pairs(self) -> float:
        return self.q.many * self.q.size * self.k.size * (0.5 if self.causal else 1)

    @property
    def by_row(self) -> bool:
        """Is it made for each row of the batch? One tile that is a stride is one for all of them."""
        return self.q.many > 1 or isinstance(self.k, Table)


class Stage(NamedTuple):
    """Calls that read some of the pairs, each query at most once, on the heads first, first + turns, ..."""

    first: int
    turns: int
    q: Line
    k: Line
    calls: tuple[Call, ...]


class Plan:
    """Stages whose reads merge into the read of the pattern, and the masks of their calls, made when they are read.

    `plain`: no row has padding and all are alike.
    """

    def __init__(self, stages: list[Stage], pairs: float, plain: bool):
        self.stages, self.pairs, self.plain = stages, pairs, plain
        self._masks: dict = {}
        self._room = KEPT

    @property
    def only(self) -> Call | None:
        """The one call of all queries and all keys, where there is no other."""
        if len(self.stages) != 1 or len(self.stages[0].calls) != 1 or self.stages[0].turns > 1:
            return None
        (call,), (q, k) = self.stages[0].calls, self.stages[0][2:4]
        whole = (
            q.source is None
            and k.source is None
            and isinstance(call.q, Tiles)
            and isinstance(call.k, Tiles)
            and call.q.many == 1
        )
        return call if whole and (call.q.size, call.k.size) == (q.size, k.size) else None

    def mask(
        self, stage: Stage, call: Call, rows: Int[Tensor, " b"], some: slice, head: int, heads: int
    ) -> Bool[Tensor, "#b #n #h q k"] | None:
        """Which pairs of a call are allowed in batch rows `some`, whose numbers are `rows`; None for all."""
        if call.where is None or call.causal:
            return None
        bound = bool(call.where.tensors())
        key = _shared(stage, call) if self.plain and not bound else None
        alone = key is not None
        of_row = (some.start, some.stop) if len(stage.q.pos) > 1 else ()
        key = (key or (id(call), *of_row), stage.first, head) if not bound else None
        if key in self._masks:
            return self._masks[key]
        found = _allowed(stage, call, rows if bound else rows[:1] * 0, some, range(head, head + heads), alone)
        kept = None if bool(found.all()) else found
        if key is not None and (size := 1 if kept is None else kept.numel()) <= self._room:
            self._room -= size
            self._masks[key] = kept
        return kept


def _shared(stage: Stage, call: Call) -> tuple | None:
    """What calls have in common that have one mask for all tiles; None where a tile needs one of its own."""
    period = call.where.period() if call.where is not None else None
    if period is None or stage.q.source is not None or stage.k.source is not None:
        return None
    if isinstance(call.q, Table) or isinstance(call.k, Table):
        return None
    if call.q.many > 1 and call.q.step % period:
        return None
    q, k = (int(line.at[0, 0]) + tiles.start for line, tiles in ((stage.q, call.q), (stage.k, call.k)))
    return q % period, q - k, call.q.size, call.k.size, call.q.inner, call.k.inner, call.where


def _allowed(stage: Stage, call: Call, rows: Tensor, some: slice, heads: range, alone: bool) -> Tensor:
    device = stage.q.pos.device
    q_at, k_at = call.q.places(device), call.k.places(device)
    if alone:
        q_at, k_at = q_at[:1], k_at[:1]
    q, k = (line.pos[some if len(line.pos) > 1 else slice(None)] for line in (stage.q, stage.k))
    q, k = q[:, q_at][:, :, None, :, None], k[:, k_at][:, :, None, None, :]  # [#b n 1 q 1], [#b n 1 1 k]
    b = rows[:, None, None, None, None]
    h = torch.arange(heads.start + stage.first, heads.stop, stage.turns, device=device)[:, None, None]
    inside = call.where(b, h, q.clamp_min(0), k.clamp_min(0)) & (q >= 0) & (k >= 0)  # type: ignore[misc]
    return inside & call.k.real(device)[:, None, None, :] if isinstance(call.k, Table) else inside
