"""Search for the plan of a pattern with the least estimated time.

A plan computes a pattern over consecutive positions by calls of dense attention over tiles of queries and keys.
"""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from kinformer.attend.fold_tiles import Tile, fold_tiles, unfold_tiles
from kinformer.attend.mirrored import Mirrored
from kinformer.attend.pattern_parts import parts
from kinformer.attend.plan_sizes import PlanSizes
from kinformer.attend.position_runs import Line, LinePair, RunPair, distinct_rows, sort_present
from kinformer.attend.tile_plan import BlockTable, Stage, StridedTiles, TileCall, TilePlan
from kinformer.core.layout import GatheredKeys, GatheredRows, Layout, Near, Residue
from kinformer.core.pattern import Pattern
from kinformer.core.patterns.blocks import Blocks
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full

BLOCKS = (64, 128, 256, 512, 1024)  # candidate numbers of queries in a tile
AHEAD = 8  # a call without gradients may hold this many times FOLDED numbers
FINE = 32  # queries in a window's tile in the forward pass: the kernel uses no matrix products for fewer
SHARED = 1.5  # tiles of keys pay off in the backward if tiles of queries read each key at least this often
FOLDED = 3 << 20  # numbers of the queries and keys of a call: more means fewer calls but more memory for gradients
GATHERED = 1 << 20  # numbers of the keys that a call copies: more do not fit into the cache in the backward pass
GRID = 1 << 22  # most blocks of pairs for which a pattern is evaluated
MASK = 1 << 23  # most pairs of a mask with more than 64 queries: making a mask takes 16 bytes per pair
STEP = 16  # most queries of a decoding step
RUNS = 3  # most runs of key blocks of one query block that get a call each; more runs are gathered
SMALL = 1 << 22  # pairs below which dense attention is faster than making a plan that is used only once


@functools.lru_cache(maxsize=32)
@torch.inference_mode(False)
def plan_of_runs(pattern: Pattern, runs: RunPair, sizes: PlanSizes, device: torch.device) -> TilePlan:
    """Return the plan of a pattern for rows with the same positions, made once and then cached.

    pattern: a pattern without tensors.
    runs: the consecutive positions of the queries and of the keys.
    sizes: sizes of the attention call.
    device: device of the queries.
    """
    # one query, or a few queries after many keys, is usually a decoding step, and the next step has another plan
    step = runs.q.size == 1 or (runs.q.size <= STEP and runs.q.size < runs.k.size)
    return make_plan(pattern, runs.lines(device), True, sizes, step)


def make_plan(pattern: Pattern, lines: LinePair, plain: bool, sizes: PlanSizes, once: bool) -> TilePlan:
    """Return the plan (attention as calls over tiles) of a pattern with the least estimated time.

    pattern: the pattern to compute.
    lines: positions of the queries and of the keys.
    plain: True if all rows have the same positions and no padding.
    sizes: sizes of the attention call.
    once: True if the plan is used only once. A small attention call then gets a dense plan without a search.
    """
    # a cached plan must be usable in training too, and its tensors are on the CPU
    with torch.inference_mode(False), _on_device(torch.device("cpu")):
        return _make_plan(pattern, lines, plain, sizes, once)


def _make_plan(pattern: Pattern, lines: LinePair, plain: bool, sizes: PlanSizes, once: bool) -> TilePlan:
    changes = tuple(
        functools.partial(_by_other_calls, change, lines, plain, sizes)
        for change in (PlanMaker.split_queries, PlanMaker.tile_by_keys)
    )
    plans = []
    if once and sizes.batch * sizes.heads * lines.q.size * lines.k.size <= SMALL:
        stage = Stage(0, 1, *lines, PlanMaker(lines, plain, sizes, 0, 1).dense_calls(pattern))
        return TilePlan([stage], sizes.pairs(stage), plain, *changes)
    for turns in {1, sizes.head_turns(pattern)}:
        stages: list[Stage] = []
        for first in range(turns):
            of_head = pattern.of_head(sizes.head + first) if turns > 1 else pattern
            stages += PlanMaker(lines, plain, sizes, first, turns).cheapest_stages(of_head)
        plans.append(TilePlan(stages, sum(sizes.pairs(stage) for stage in stages), plain, *changes))
    return min(plans, key=lambda plan: plan.pairs)


def _by_other_calls(
    change: Callable[["PlanMaker", Stage], Stage], lines: LinePair, plain: bool, sizes: PlanSizes, stage: Stage
) -> Stage:
    with torch.inference_mode(False), _on_device(torch.device("cpu")):
        return change(PlanMaker(lines, plain, sizes, stage.first, stage.turns), stage)


def _on_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a device context, empty on the default device: a context sends calls through Python."""
    return nullcontext() if torch.get_default_device() == device else device


Sketch = tuple[Line, Line, list[TileCall]]


class PlanMaker(NamedTuple):
    """Maker of the stages of a plan (groups of calls over tiles) for the heads first, first + turns, ...

    lines, sizes: positions of queries and keys, and sizes of the attention call.
    plain: True if all rows have the same positions and no padding.
    first: index of the first head, counted from the first head of the request.
    turns: step from one of the heads to the next.
    """

    lines: LinePair
    plain: bool
    sizes: PlanSizes
    first: int
    turns: int

    def cheapest_stages(self, pattern: Pattern) -> list[Stage]:
        """Return the fastest of three ways: each part of the pattern by itself, all parts together, or dense."""
        q, k = self.lines
        pieces = parts(pattern, max(q.size, k.size))
        options = [
            [Stage(self.first, self.turns, q, k, self.dense_calls(pattern))],
            [stage for part in pieces for stage in self.best(part.where, part.layout)],
        ]
        if len(pieces) > 1:
            options.append(self.best(pattern, Near(*pattern.reach())))
        return min(options, key=self.cost)

    def best(self, where: Pattern, layout: Layout) -> list[Stage]:
        """Return the stages for a part of a pattern, in tiles of the size with the least estimated time."""
        q, k = self.gather_lines(layout)
        if not q.size or not k.size:
            return []
        options, blocks = [], _BlockCover(self, where, q, k)
        for block in _tile_sizes(where):
            sketches = self.stages(where, layout, blocks, block)
            options.append([Stage(self.first, self.turns, q, k, tuple(calls)) for q, k, calls in sketches if calls])
            if block >= q.size:
                break  # larger tiles give the same result or include more unneeded keys
        return min(options, key=self.cost)

    def cost(self, stages: list[Stage]) -> float:
        return sum(self.sizes.pairs(stage) for stage in stages)

    @property
    def width(self) -> int:
        """The width of one key, times the number of heads of this maker."""
        return self.sizes.width * len(range(self.first, self.sizes.heads, self.turns))

    def dense_calls(self, pattern: Pattern) -> tuple[TileCall, ...]:
        """Return calls of all queries with all keys: one call, or several if scores or a mask need memory."""
        q, k = self.lines
        alone = self.sizes.fused
        where = None if self.plain and type(pattern) is Full else pattern
        causal = alone and self.plain and type(pattern) is Causal and q.size == k.size
        if alone and (where is None or (causal and bool(q.at[0, 0] == k.at[0, 0]))):
            return (TileCall(StridedTiles(0, q.size), StridedTiles(0, k.size), where, causal),)
        max_rows = min(max(BLOCKS), max(min(BLOCKS), MASK // max(k.size, 1))) if alone else max(BLOCKS)
        tiles = (StridedTiles(lo, min(max_rows, q.size - lo)) for lo in range(0, q.size, max_rows))
        return tuple(TileCall(tile, StridedTiles(0, k.size), where) for tile in tiles)

    def gather_lines(self, layout: Layout) -> LinePair:
        """Return the positions of the queries and of the keys that a layout gathers."""
        q, k = self.lines
        if isinstance(layout, GatheredRows):
            q = q.gather(sort_present(torch.tensor(layout.p, dtype=torch.long), q))
        if isinstance(layout, GatheredKeys):
            k = k.gather(sort_present(_repeated_positions(layout, k), k))
        return LinePair(q, k)

    def stages(self, where: Pattern, layout: Layout, blocks: "_BlockCover", block: int) -> Iterator[Sketch]:
        """Yield the positions of queries and keys, and the calls, of each stage for one part of a pattern."""
        q, k = blocks.q, blocks.k
        back, ahead = where.reach()
        back, ahead = min(back, layout.back), min(ahead, layout.ahead)
        n = layout.n if isinstance(layout, Residue) else 1
        if n > 1 and (tiles_by_residue := self.residues(q, k, n, back, ahead, block)):
            yield q, k, self.fold_calls(where, tiles_by_residue)
        else:
            for tiles in self.windows(blocks, back, ahead, block):
                yield q, k, tiles

    def windows(self, blocks: "_BlockCover", back: float, ahead: float, block: int) -> Iterator[list[TileCall]]:
        """Yield calls in which each block of queries meets the keys from `back` before to `ahead` after it."""
        where, q, k = blocks.where, blocks.q, blocks.k
        starts = torch.arange(0, q.size, block)
        ends = (starts + block).clamp_max(q.size)
        low, high = q.at[:, starts], q.at[:, ends - 1]
        first = torch.zeros_like(low) if back == math.inf else torch.searchsorted(k.at, low - int(back))
        last = torch.full_like(low, k.size) if ahead == math.inf else torch.searchsorted(k.at, high + int(ahead) + 1)
        first, last = first.amin(0), last.amax(0)
        if k.source is not None and len(starts) * k.size * len(distinct_rows(q, k)) <= GRID:
            calls = self.columns(where, q, k, starts, ends)
            if calls is not None:
                yield from calls
                return
        if math.inf in (back, ahead) and len(starts) > 1 and k.size > block >= blocks.least:
            yield from self.grid(blocks, ends, block)
            return
        first, last = self.trim_windows(where, q, k, starts, ends, first, last, block)
        keep = last > first
        any_pair, every = self.cover(where, q, k, (starts, ends - 1), (first, (last - 1).clamp_min(0)))
        rows = torch.stack((starts, ends - starts, first, last - first, every.long()))[:, keep & any_pair].T.tolist()
        yield self.fold_calls(where, [Tile(a, n, b, m, 1, bool(full)) for a, n, b, m, full in rows])

    def trim_windows(
        self, where: Pattern, q: Line, k: Line, starts: Tensor, ends: Tensor, first: Tensor, last: Tensor, block: int
    ) -> tuple[Tensor, Tensor]:
        """Shorten each window of keys by the blocks at its ends in which the pattern allows no pair."""
        begin = torch.div(first, block, rounding_mode="floor")
        max_blocks = int((torch.div(last - 1, block, rounding_mode="floor") - begin).max()) + 1
        if len(starts) * max_blocks * len(distinct_rows(q, k)) > GRID:
            return first, last
        at = (begin[:, None] + torch.arange(max(max_blocks, 1))) * block  # [N m]
        places = (starts[:, None], ends[:, None] - 1), (at, (at + block).clamp_max(k.size) - 1)
        any_pair = self.cover(where, q, k, *places)[0] & (at < last[:, None])
        first = torch.maximum(first, torch.where(any_pair, at, k.size).amin(1))
        return first, torch.minimum(last, torch.where(any_pair, at + block, 0).amax(1))

    def cover(
        self, where: Pattern, q: Line, k: Line, q_ends: tuple[Tensor, Tensor], k_ends: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return for each block whether any pair of any row, and whether every pair of all rows, is allowed."""
        rows = distinct_rows(q, k)
        at = [q.at[rows][:, place] for place in q_ends] + [
            k.at[rows][:, place.clamp_max(k.size - 1)] for place in k_ends
        ]
        # a pattern with tensors needs its positions on the device of the tensors
        with _on_device(device := next((x.device for x in where.tensors().values()), q.at.device)):
            cover = where.cover(*(x.clamp_min(0).to(device) for x in at))
        any_pair, every = (x.to(q.at.device) for x in cover)
        any_pair, every = (x.expand(torch.broadcast_shapes(*(x.shape for x in at))) for x in (any_pair, every))
        return any_pair.any(0), every.all(0) & self.plain

    def grid(self, blocks: "_BlockCover", ends: Tensor, block: int) -> Iterator[list[TileCall]]:
        """Yield calls over runs of allowed key blocks; many runs of a query block are looked up by number."""
        where, q, k = blocks.where, blocks.q, blocks.k
        any_pair, every = blocks.coarsen(block)
        kind = any_pair.long() + (every & any_pair)  # 0 none, 1 some, 2 every
        layers: list[list[Tile]] = [[] for _ in range(RUNS)]
        tables: dict[tuple[int, bool], list[tuple[int, list[int]]]] = {}
        calls = []
        for n, runs in enumerate(_runs_of_kind(kind)):
            start, size = n * block, int(ends[n]) - n * block
            if len(runs) <= RUNS:
                for layer, (lo, hi, cover) in zip(layers, runs, strict=False):
                    keys = min(hi * block, k.size) - lo * block
                    layer.append(Tile(start, size, lo * block, keys, 1, cover == 2))
                continue
            read = [m for lo, hi, _ in runs for m in range(lo, hi)]
            full = all(cover == 2 for _, _, cover in runs) and (read[-1] + 1) * block <= k.size
            if size == block:
                tables.setdefault((len(read), full), []).append((n, read))
            else:
                table = BlockTable(torch.tensor([read]), block, k.size)
                calls.append(TileCall(StridedTiles(start, size), table, None if full else where))
        for (width, full), tiles in tables.items():
            max_tiles = max(1, GATHERED // (width * block * self.width))
            for run in (tiles[lo : lo + max_tiles] for lo in range(0, len(tiles), max_tiles)):
                of_q, of_k = zip(*run, strict=True)
                of_q = BlockTable(torch.tensor(of_q)[:, None], block, q.size)
                calls.append(TileCall(of_q, BlockTable(torch.tensor(of_k), block, k.size), None if full else where))
        yield self.fold_calls(where, layers[0]) + calls
        yield from (self.fold_calls(where, layer) for layer in layers[1:])

    def columns(self, where: Pattern, q: Line, k: Line, starts: Tensor, ends: Tensor) -> list[list[TileCall]] | None:
        """Return calls over runs of allowed keys among gathered keys, or None if a tile has many runs."""
        keys = torch.arange(k.size)[None]
        any_pair, every = self.cover(where, q, k, (starts[:, None], ends[:, None] - 1), (keys, keys))
        runs = _runs_of_kind(any_pair.long() + (every & any_pair))
        if max(map(len, runs)) > RUNS:
            return None
        layers: list[list[Tile]] = [[] for _ in range(RUNS)]
        for start, end, of_queries in zip(starts.tolist(), ends.tolist(), runs, strict=True):
            for layer, (lo, hi, kind) in zip(layers, of_queries, strict=False):
                layer.append(Tile(start, end - start, lo, hi - lo, 1, kind == 2))
        return [self.fold_calls(where, layer) for layer in layers]

    def residues(self, q: Line, k: Line, n: int, back: float, ahead: float, block: int) -> list[Tile] | None:
        """Return tiles of the pairs with a distance divisible by n; None if rows have different offsets mod n."""
        apart = (q.at[:, 0] - k.at[:, 0]).tolist()
        if len({offset % n for offset in apart}) > 1:
            return None
        tiles: list[Tile] = []
        for a in range(0, -(-q.size // n), block):
            for r in range(min(n, q.size)):
                s = (apart[0] + r) % n
                size = min(block, -(-(q.size - r) // n) - a)
                of_keys = -(-(k.size - s) // n)
                shifts = [(offset + r - s) // n for offset in apart]
                lo = 0 if back == math.inf else max(0, a + min(shifts) - int(back // n))
                hi = of_keys if ahead == math.inf else min(of_keys, a + size - 1 + max(shifts) + int(ahead // n) + 1)
                if size > 0 and hi > lo:
                    tiles.append(Tile(r + a * n, size, s + lo * n, hi - lo, n, False))
        return tiles

    def fold_calls(self, where: Pattern, tiles: list[Tile], times: int = 1) -> list[TileCall]:
        """Group tiles into calls whose queries and keys have at most `times` * FOLDED numbers."""
        return fold_tiles(where, tiles, times * FOLDED // self.width, self.sizes.batch)

    def split_queries(self, stage: Stage) -> Stage:
        """Split the tiles of a window into smaller ones for the forward pass, so that each has fewer keys.

        The backward pass keeps the large tiles, because it writes gradients for each key of each tile.
        """
        where = self.window(stage)
        if where is None or FINE % (where.period() or 0):
            return stage
        margin = int(sum(where.reach()))
        tiles = [part for call in stage.calls for tile in unfold_tiles(call) for part in tile.parts(FINE, margin)]
        return stage._replace(calls=tuple(self.fold_calls(where, tiles, AHEAD)))

    def window(self, stage: Stage) -> Pattern | None:
        """Return the pattern of a stage if it is a periodic window over whole rows, else None."""
        where = next((call.where for call in stage.calls if call.where is not None), None)
        tiles = [tile for call in stage.calls for tile in call[:2]]
        if where is None or not self.plain or where.period() is None or math.inf in where.reach():
            return None
        if stage.q.source is not None or stage.k.source is not None or where.tensors():
            return None
        return None if any(isinstance(tile, BlockTable) or tile.inner > 1 for tile in tiles) else where

    def tile_by_keys(self, stage: Stage) -> Stage:
        """Replace tiles of queries by tiles of keys for the backward pass, if tiles of a window share keys.

        Each tile adds two gradients to every key that it shares (of key and value), but only one to a shared query.
        """
        where = self.window(stage)
        if where is None or sum(call.k.many * call.k.size for call in stage.calls) < SHARED * stage.k.size:
            return stage
        blocks, (back, ahead) = _BlockCover(self, Mirrored(where), stage.k, stage.q), where.reach()
        (calls,) = self.windows(blocks, ahead, back, max(call.q.size for call in stage.calls))
        return stage._replace(
            calls=tuple(TileCall(call.k, call.q, None if call.where is None else where) for call in calls)
        )


def _tile_sizes(where: Pattern) -> list[int]:
    """Return candidate numbers of queries in a tile. Tiles of the size of a pattern's blocks need no mask."""
    expression = where.expression
    sizes = {expression.size} if isinstance(expression, Blocks) and expression.size >= min(BLOCKS) else set()
    return sorted({*BLOCKS, *sizes})


class _BlockCover:
    """Cover of a pattern for all blocks of pairs.

    The pattern is evaluated once, for blocks of the smallest size `least`. Larger blocks are derived from them.
    """

    def __init__(self, maker: PlanMaker, where: Pattern, q: Line, k: Line):
        self.maker, self.where, self.q, self.k = maker, where, q, k
        rows = len(distinct_rows(q, k))
        fit = (block for block in BLOCKS if -(-q.size // block) * -(-k.size // block) * rows <= GRID)
        self.least = next(fit, math.inf)

    @functools.cached_property
    def cover(self) -> tuple[Tensor, Tensor]:
        (q, q_last), (k, k_last) = (_ends(line.size, int(self.least)) for line in (self.q, self.k))
        return self.maker.cover(self.where, self.q, self.k, (q[:, None], q_last[:, None]), (k[None], k_last[None]))

    def coarsen(self, block: int) -> tuple[Tensor, Tensor]:
        """Return for each block of this size if any pair is allowed, and if every pair is allowed."""
        any_pair, every = self.cover
        times = block // int(self.least)
        over = 0, -any_pair.shape[1] % times, 0, -any_pair.shape[0] % times
        any_pair, every = F.pad(any_pair, over), F.pad(every, over, value=True)
        any_pair, every = (x.unflatten(1, (-1, times)).unflatten(0, (-1, times)) for x in (any_pair, every))
        return any_pair.any(3).any(1), every.all(3).all(1)


def _ends(length: int, block: int) -> tuple[Tensor, Tensor]:
    """Return the first and the last place of each block."""
    starts = torch.arange(0, length, block)
    return starts, (starts + block).clamp_max(length) - 1


def _runs_of_kind(kind: Int[Tensor, "N M"]) -> list[list[tuple[int, int, int]]]:
    """Return the runs of one nonzero kind in each row, as (start, end, kind)."""
    row, lo = F.pad(kind[:, 1:] != kind[:, :-1], (1, 0), value=True).nonzero().T
    hi = F.pad(lo[1:], (0, 1))
    hi = torch.where(hi == 0, kind.shape[1], hi)  # the next run begins in another row
    runs: list[list[tuple[int, int, int]]] = [[] for _ in kind]
    for n, *run in torch.stack((row, lo, hi, kind[row, lo]))[:, kind[row, lo] > 0].T.tolist():
        runs[n].append(tuple(run))
    return runs


def _repeated_positions(layout: GatheredKeys, k: Line) -> Tensor:
    """Return the positions that a layout gathers, up to the last key or beyond it."""
    p = torch.tensor(layout.p, dtype=torch.long)
    if layout.period is None:
        return p
    # each row has its own periods, because rows may be far from each other
    turns = k.at[:, :1].clamp_min(0) // layout.period + torch.arange((k.size - 1) // layout.period + 2)
    return (turns.unique()[:, None] * layout.period + p).flatten()
