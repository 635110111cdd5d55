"""Grouping of many tiles (rectangles of queries and keys) into few calls of attention."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from kinformer.attend.tile_plan import StridedTiles, TileCall
from kinformer.core.pattern import Pattern


class Tile(NamedTuple):
    """A tile: a rectangle of queries and keys for which one call computes attention.

    q: index of the first query in the row.
    size: number of queries in the tile.
    k: index of the first key in the row.
    keys: number of keys in the tile.
    inner: index step from one query of the tile to the next, and from one key to the next.
    every: True if the pattern allows every pair of the tile.
    """

    q: int
    size: int
    k: int
    keys: int
    inner: int
    every: bool

    def parts(self, size: int, margin: int) -> "Iterator[Tile]":
        """Split a window tile into tiles of `size` queries; yield other tiles unchanged.

        A tile is a window if it has `margin` more keys than queries.
        """
        whole = self.keys == self.size + margin and self.size % size == 0
        for at in range(0, self.size, size) if whole else ():
            yield Tile(self.q + at, size, self.k + at, size + margin, 1, self.every)
        if not whole:
            yield self


class _Kind(NamedTuple):
    """Properties that all tiles of one call share."""

    size: int
    keys: int
    inner: int
    every: bool


ENDS = 2  # the tiles at the two ends of a window; one call for both would have no band for biases
Starts = list[tuple[int, int]]  # the first query and the first key of each tile


def fold_tiles(where: Pattern, tiles: list[Tile], max_places: int, batch: int) -> list[TileCall]:
    """Group tiles of equal shape into few attention calls, and join neighbours that read the same keys.

    A tile is a block of queries with a block of keys. First, tiles are grouped that follow each other at a constant
    step and have one distance between queries and keys. Then the remaining tiles are grouped; their queries and keys
    may follow at different steps. A bias that depends on distances must then look up the distance of each pair.

    where: the pattern of allowed pairs.
    tiles: the tiles, in ascending order.
    max_places: largest number of queries and keys together in one call.
    batch: number of rows in the batch. Remaining tiles are grouped only if a group has more tiles than this number
        and more than two. A grouped call runs once for each row.
    """
    alike: dict[tuple[_Kind, int], Starts] = {}
    for q, size, k, keys, inner, every in _join_neighbours(tiles):
        alike.setdefault((_Kind(size, keys, inner, every), k - q), []).append((q, k))
    runs: list[tuple[_Kind, Starts]] = []
    left: dict[_Kind, Starts] = {}
    for (kind, _), starts in alike.items():
        for run in _even_runs(starts, max(1, max_places // (kind.size + kind.keys))):
            if len(run) > 1:
                runs.append((kind, run))
            else:
                left.setdefault(kind, []).extend(run)
    for kind, starts in left.items():
        for run in _even_runs(sorted(starts), max(1, max_places // (kind.size + kind.keys))):
            runs += [(kind, run)] if len(run) > max(batch, ENDS) else [(kind, [at]) for at in run]
    return [_call(where, *group) for group in sorted(runs, key=lambda group: group[1][0])]


def unfold_tiles(call: TileCall) -> Iterator[Tile]:
    """Yield the tiles of `call`, whose tiles must be at equal steps (`StridedTiles`)."""
    q, k = call.q, call.k
    assert isinstance(q, StridedTiles) and isinstance(k, StridedTiles)
    for n in range(q.many):
        yield Tile(q.start + n * q.step, q.size, k.start + n * k.step, k.size, q.inner, call.where is None)


def _call(where: Pattern, kind: _Kind, starts: Starts) -> TileCall:
    (q, k), (q_next, k_next) = starts[0], starts[min(1, len(starts) - 1)]
    of_q = StridedTiles(q, kind.size, len(starts), q_next - q, kind.inner)
    return TileCall(
        of_q, StridedTiles(k, kind.keys, len(starts), k_next - k, kind.inner), None if kind.every else where
    )


def _join_neighbours(tiles: list[Tile]) -> list[Tile]:
    """Join neighbouring tiles if every pair in them is allowed and they read the same keys."""
    joined: list[Tile] = []
    for tile in tiles:
        last = joined[-1] if joined and tile.every else None
        if last is not None and last[2:] == tile[2:] and tile.inner == 1 and last.q + last.size == tile.q:
            joined[-1] = last._replace(size=last.size + tile.size)
        else:
            joined.append(tile)
    return joined


def _even_runs(starts: Starts, max_places: int) -> Iterator[Starts]:
    """Split ascending places into runs at even distances, with at most `max_places` tiles per run."""
    run: Starts = []
    for at in starts:
        apart = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise([*run[-2:], at])]
        if len(run) == max_places or len({*apart}) > 1 or any(k <= 0 for _, k in apart):
            yield run
            run = []
        run.append(at)
    if run:
        yield run
