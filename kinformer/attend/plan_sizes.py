"""plan_sizes: the numbers of a read that its plan depends on, and what calls cost by them."""

from typing import NamedTuple

from kinformer.attend.tile_plan import Stage
from kinformer.core.pattern import Pattern

EDGE = 64  # queries more that a tile takes the time of: products of few queries are slow
CALL = 60_000  # pairs of one head that cost as much as the overhead of a call


class PlanSizes(NamedTuple):
    """What a plan depends on beside pattern and positions.

    `head` is the number of the first head, `width` the numbers of a key. `groups` are the heads of the keys, None where
    all heads must be read together. `fused`: True for a fused kernel, which stores no scores.
    """

    batch: int
    heads: int
    groups: int | None
    head: int
    width: int
    fused: bool = True

    def pairs(self, stage: Stage) -> float:
        """What the calls of a stage cost, in pairs of one head."""
        mine = self.batch * len(range(stage.first, self.heads, stage.turns))
        return sum(
            (self.batch if call.by_row else 1) * CALL + mine * call.pairs * (1 + EDGE / call.q.size)
            for call in stage.calls
        )

    def head_turns(self, pattern: Pattern) -> int:
        """After how many heads a pattern repeats; 1 where heads so far apart do not share their keys' heads evenly."""
        if self.groups is None:
            return 1
        by_head = [pattern.of_head(self.head + h) for h in range(self.heads)]
        turns = next(
            n for n in range(1, self.heads + 1) if all(by_head[h] == by_head[h % n] for h in range(self.heads))
        )
        shared = self.heads // self.groups
        return turns if self.groups == 1 or shared % turns == 0 or turns % shared == 0 else 1
