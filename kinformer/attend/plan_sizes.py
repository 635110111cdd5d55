"""Sizes that a plan of attention depends on, and the estimated time that follows from them."""

from typing import NamedTuple

from kinformer.attend.tile_plan import Stage
from kinformer.core.pattern import Pattern

EDGE = 64  # a tile takes the time of this many more queries, because products of few queries are slow
CALL = 60_000  # pairs of one head that cost as much as the overhead of a call


class PlanSizes(NamedTuple):
    """Sizes that decide, with pattern and positions, how an attention call is split into smaller calls.

    batch: number of rows.
    heads: number of query heads.
    groups: number of key heads; None if heads must not be split between calls.
    head: index of the first head in the layer.
    width: width of a key.
    fused: True for a fused kernel, which stores no scores.
    """

    batch: int
    heads: int
    groups: int | None
    head: int
    width: int
    fused: bool = True

    def pairs(self, stage: Stage) -> float:
        """Return the estimated time of a stage's calls, in units of the time for one pair of one head."""
        mine = self.batch * len(range(stage.first, self.heads, stage.turns))
        return sum(
            (self.batch if call.by_row else 1) * CALL + mine * call.pairs * (1 + EDGE / call.q.size)
            for call in stage.calls
        )

    def head_turns(self, pattern: Pattern) -> int:
        """Return the number of heads after which a pattern that differs by head repeats.

        The plan then has stages for each of these heads. The result is 1 if such a split does not fit the groups of
        query heads that share a key head.
        """
        if self.groups is None:
            return 1
        by_head = [pattern.of_head(self.head + h) for h in range(self.heads)]
        turns = next(
            n for n in range(1, self.heads + 1) if all(by_head[h] == by_head[h % n] for h in range(self.heads))
        )
        shared = self.heads // self.groups
        return turns if self.groups == 1 or shared % turns == 0 or turns % shared == 0 else 1
