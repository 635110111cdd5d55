"""folding: tiles of a row as few calls."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from kinformer.attend.tile_plan import StridedTiles, TileCall
from kinformer.core.pattern import Pattern


class Tile(NamedTuple):
    """`size` queries from place q, `keys` keys from place k on, `inner` places apart; is every pair allowed?"""

    q: int
    size: int
    k: int
    keys: int
    inner: int
    every: bool

    def parts(self, size: int, margin: int) -> "Iterator[Tile]":
        """By so many queries, where its keys are all that stand up to so many places `beside` one of its queries."""
        whole = self.keys == self.size + margin and self.size % size == 0
        for at in range(0, self.size, size) if whole else ():
            yield Tile(self.q + at, size, self.k + at, size + margin, 1, self.every)
        if not whole:
            yield self


class _Kind(NamedTuple):
    """What tiles of one call have in common."""

    size: int
    keys: int
    inner: int
    every: bool


ENDS = 2  # tiles that both ends of a window are: as a run they have no band, by which biases are read
Starts = list[tuple[int, int]]  # the first query and the first key of each tile


def fold_tiles(where: Pattern, tiles: list[Tile], max_places: int, batch: int) -> list[TileCall]:
    """Tiles alike at even distances as one call of at most so many places each, and neighbours that read the same keys.

    First those as far from their keys, then what is left; such a call is made for each row of the batch. What is left
    and stands at unlike steps has no band, so biases of distances that learn are looked up where it was folded.
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
    """The tiles of a call of which none is looked up."""
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
    """With neighbours that read all of the same keys as one."""
    joined: list[Tile] = []
    for tile in tiles:
        last = joined[-1] if joined and tile.every else None
        if last is not None and last[2:] == tile[2:] and tile.inner == 1 and last.q + last.size == tile.q:
            joined[-1] = last._replace(size=last.size + tile.size)
        else:
            joined.append(tile)
    return joined


def _even_runs(starts: Starts, max_places: int) -> Iterator[Starts]:
    """Ascending places as runs of at most so many, at even distances."""
    run: Starts = []
    for at in starts:
        apart = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise([*run[-2:], at])]
        if len(run) == max_places or len({*apart}) > 1 or any(k <= 0 for _, k in apart):
            yield run
            run = []
        run.append(at)
    if run:
        yield run
