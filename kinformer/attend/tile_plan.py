"""Plans of attention and their elements: tiles of queries and keys, calls, stages, masks of calls."""

from collections.abc import Callable
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.attend.position_runs import Line
from kinformer.core.heads import number_of_groups
from kinformer.core.pattern import Pattern

MASK_BYTES = 1 << 25  # most bytes of masks that a plan keeps for the next layer and the backward pass


class StridedTiles(NamedTuple):
    """Tiles (pieces of tokens of a row) of equal size at equal steps.

    Token i of tile t has the index start + t * step + i * inner in the row.

    start: index of the first token of the first tile.
    size: number of tokens in a tile.
    many: number of tiles.
    step: index step from one tile to the next.
    inner: index step from one token of a tile to the next.
    """

    start: int
    size: int
    many: int = 1
    step: int = 0
    inner: int = 1

    def indices(self, device: torch.device) -> Int[Tensor, "n size"]:
        tile, place = torch.arange(self.many, device=device)[:, None], torch.arange(self.size, device=device)
        return self.start + tile * self.step + place * self.inner


class BlockTable(NamedTuple):
    """Tiles (pieces of tokens of a row) that consist of blocks of the row, given by number.

    blocks: numbers of the m blocks of each of n tiles [n, m].
    block: number of tokens in a block.
    length: number of tokens in the row.
    """

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
    def has_full_blocks(self) -> bool:
        """True if no block extends beyond the end of the row."""
        return int(self.blocks.max() + 1) * self.block <= self.length

    def indices(self, device: torch.device) -> Int[Tensor, "n size"]:
        """Return the index in the row of each token of the tiles; beyond the end of the row, the last index."""
        return self._numbers().clamp_max(self.length - 1).to(device)

    def is_real(self, device: torch.device) -> Bool[Tensor, "n size"]:
        """Return True for each token of the tiles that lies inside the row."""
        return (self._numbers() < self.length).to(device)

    def _numbers(self) -> Int[Tensor, "n size"]:
        at = torch.arange(self.block, device=self.blocks.device)
        return (self.blocks[:, :, None] * self.block + at).flatten(1)


class TileCall(NamedTuple):
    """One call of dense attention over tiles: the queries of tile t attend to the keys of tile t.

    q, k: tiles of the queries and of the keys.
    where: pattern of the allowed pairs, or None if all pairs are allowed.
    causal: True if the pattern allows, for query i of a tile, exactly the keys 0 .. i of the tile. The kernel then
        needs no mask.
    """

    q: StridedTiles | BlockTable
    k: StridedTiles | BlockTable
    where: Pattern | None
    causal: bool = False

    @property
    def pairs(self) -> float:
        return self.q.many * self.q.size * self.k.size * (0.5 if self.causal else 1)

    @property
    def by_row(self) -> bool:
        """True if the call runs once for each row of the batch, False if once for all rows.

        It runs for all rows together if it has one strided tile only.
        """
        return self.q.many > 1 or isinstance(self.k, BlockTable)


class Stage(NamedTuple):
    """A part of a plan: calls for the heads first, first + turns, ..., with each query at most once.

    first: index of the first head.
    turns: step from one of the heads to the next.
    q, k: positions of the queries and of the keys.
    calls: the calls of dense attention over tiles.
    """

    first: int
    turns: int
    q: Line
    k: Line
    calls: tuple[TileCall, ...]

    def tile_distances(self, call: TileCall) -> range | None:
        """Return the distances between query and key in each tile, the furthest first.

        None if the distances differ between tiles or rows, or if tokens are gathered or looked up by number.
        """
        q, k = call.q, call.k
        if (
            self.q.source is not None
            or self.k.source is not None
            or isinstance(q, BlockTable)
            or isinstance(k, BlockTable)
        ):
            return None
        offsets = {*(self.q.at[:, 0] - self.k.at[:, 0]).tolist()}
        first = offsets.pop() + q.start - k.start
        if offsets or q.step != k.step:
            return None
        return range(first + (q.size - 1) * q.inner, first - k.size * k.inner, -q.inner)


def shares(first: int, turns: int, heads: int, groups: int) -> tuple[slice, slice]:
    """Return a slice for the query heads first, first + turns, ... and one for their key heads.

    first: index of the first query head.
    turns: step from one of the query heads to the next.
    heads: number of query heads.
    groups: number of key heads.
    """
    shared = number_of_groups(heads, groups)
    every = groups == 1 or shared % turns == 0
    of_k = slice(None) if every else slice(first // shared, None, turns // shared)
    return slice(first, None, turns), of_k


Other = Callable[[Stage], Stage]  # returns a stage with the same pairs in other calls


class TilePlan:
    """Plan of an attention call: stages (groups of calls) whose outputs are merged, and masks made on use.

    stages: the stages.
    pairs: estimated time of the plan, in the time for one (query, key) pair of one head.
    plain: True if all rows have the same positions and no padding.
    finer: function that returns a stage for the forward pass: a window in smaller tiles, other stages unchanged.
    turned: function that returns a stage for the backward pass: a window in tiles of keys, other stages unchanged.

    If the pattern holds tensors of the batch, every use of the plan must pass the same `rows` to `make_mask`.
    """

    def __init__(self, stages: list[Stage], pairs: float, plain: bool, finer: Other, turned: Other):
        self.stages, self.pairs, self.plain = stages, pairs, plain
        self._finer, self._turned = finer, turned
        self._masks: dict = {}
        self._room = MASK_BYTES

    @cached_property
    def forward_stages(self) -> list[Stage]:
        """The stages (groups of calls) of the plan with the calls for the forward pass."""
        return [self._finer(stage) for stage in self.stages]

    @cached_property
    def backward_stages(self) -> list[Stage]:
        """The stages (groups of calls) of the plan with the calls for the backward pass."""
        return [self._turned(stage) for stage in self.stages]

    @cached_property
    def single_call(self) -> TileCall | None:
        """The call of all queries and all keys if it is the only call of the plan, else None."""
        if len(self.stages) != 1 or len(self.stages[0].calls) != 1 or self.stages[0].turns > 1:
            return None
        (call,), (q, k) = self.stages[0].calls, self.stages[0][2:4]
        tiled = isinstance(call.q, StridedTiles) and isinstance(call.k, StridedTiles) and call.q.many == 1
        whole = tiled and q.source is None and k.source is None
        return call if whole and (call.q.size, call.k.size) == (q.size, k.size) else None

    def begins_with(self, of: Literal["q", "k"]) -> bool:
        """Return True if the first stage has all heads, and its queries ("q") or keys ("k") are not gathered."""
        return bool(self.stages) and self.stages[0].turns == 1 and getattr(self.stages[0], of).source is None

    @cached_property
    def covers(self) -> bool:
        """True if the first stage computes an output for every query."""
        return self.begins_with("q") and sum(q.many * q.size for q, *_ in self.stages[0].calls) == self.stages[0].q.size

    @cached_property
    def looks_up(self) -> bool:
        """True if a call looks up blocks of a row by number (`BlockTable`)."""
        return any(isinstance(tiles, BlockTable) for stage in self.stages for call in stage.calls for tiles in call[:2])

    @cached_property
    def span(self) -> tuple[int, int, bool]:
        """The smallest and largest distance between query and key, and whether all calls have a band.

        The smallest is at most 0, the largest at least 0. A call has a band if all its tiles have the same distances;
        then a bias by distance needs no look-up.
        """
        nearest, furthest, bands = 0, 0, True
        for stage in self.stages:
            for distances in map(stage.tile_distances, stage.calls):
                q, k = stage.q.at, stage.k.at
                ends = (
                    (int(q.max() - k.min()), int(q.min() - k.max()))
                    if distances is None
                    else (distances[0], distances[-1])
                )
                nearest, furthest, bands = (
                    min(nearest, ends[1]),
                    max(furthest, ends[0]),
                    bands and distances is not None,
                )
        return nearest, furthest, bands

    def make_mask(
        self, stage: Stage, call: TileCall, rows: Int[Tensor, " B"] | None, batch: slice, heads: range, q: Tensor
    ) -> tuple[Float[Tensor, "#n #H q k"] | None, Bool[Tensor, "#n #H q"] | None]:
        """Return the mask of a call to add to its scores, and its queries without a key.

        Each is None if it is not needed.

        stage: the stage of the call.
        call: the call.
        rows: index in the batch of each row, or None if they are in order.
        batch: the rows for which the mask is made.
        heads: indices of the heads of the request.
        q: queries; they give the dtype and device of the mask.
        """
        if call.where is None or call.causal:
            return None, None
        bound = bool(call.where.tensors())
        key = _mask_key(stage, call) if self.plain and not bound else None
        alone = key is not None
        of_row = (batch.start, batch.stop) if bound or len(stage.q.pos) > 1 else ()
        key = (key or (id(call), *of_row), stage.first, heads.start, q.dtype)
        if key not in self._masks:
            is_allowed = _allowed_pairs(
                stage, call, _batch_rows(rows, batch, q) if bound else None, batch, heads, alone
            )
            numbers = _additive_mask(is_allowed[0] if call.by_row else is_allowed[:, 0], q)
            size = 1 if numbers[0] is None else numbers[0].nbytes
            if size > self._room:
                return numbers
            self._room -= size
            self._masks[key] = numbers
        return self._masks[key]


def _batch_rows(rows: Int[Tensor, " B"] | None, batch: slice, q: Tensor) -> Int[Tensor, " b"]:
    return torch.arange(len(q), device=q.device)[batch] if rows is None else rows[batch]


def _additive_mask(allowed: Bool[Tensor, "#n #H q k"], q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if bool(allowed.all()):
        return None, None
    empty = ~allowed.any(-1)
    shut = torch.zeros(allowed.shape, dtype=q.dtype, device=q.device).masked_fill_(~allowed, -torch.inf)
    return shut, empty if bool(empty.any()) else None


def _mask_key(stage: Stage, call: TileCall) -> tuple | None:
    """Return a key shared by calls with one mask for all tiles; None if tiles need different masks."""
    period = call.where.period() if call.where is not None else None
    if period is None or stage.q.source is not None or stage.k.source is not None:
        return None
    if isinstance(call.q, BlockTable) or isinstance(call.k, BlockTable):
        return None
    if call.q.many > 1 and (call.q.step % period or call.q.step != call.k.step):
        return None
    q, k = (int(line.at[0, 0]) + tiles.start for line, tiles in ((stage.q, call.q), (stage.k, call.k)))
    return q % period, q - k, call.q.size, call.k.size, call.q.inner, call.k.inner, call.where


def _allowed_pairs(
    stage: Stage, call: TileCall, rows: Tensor | None, batch: slice, heads: range, alone: bool
) -> Tensor:
    device = stage.q.pos.device
    q_at, k_at = call.q.indices(device), call.k.indices(device)
    if alone:
        q_at, k_at = q_at[:1], k_at[:1]
    q, k = (line.pos[batch if len(line.pos) > 1 else slice(None)] for line in (stage.q, stage.k))
    q, k = q[:, q_at][:, :, None, :, None], k[:, k_at][:, :, None, None, :]  # [#b n 1 q 1], [#b n 1 1 k]
    b = 0 if rows is None else rows[:, None, None, None, None]
    h = torch.arange(heads.start + stage.first, heads.stop, stage.turns, device=device)[:, None, None]
    inside = call.where(b, h, q.clamp_min(0), k.clamp_min(0)) & (q >= 0) & (k >= 0)  # type: ignore[misc]
    return inside & call.k.is_real(device)[:, None, None, :] if isinstance(call.k, BlockTable) else inside
