"""Scores of members in the arena, from a table in the package."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kinformer.lab.compare.interval import Interval, is_better

TABLE = Path(__file__).with_name("arena.json")
BITS = "bits per byte"  # the metric of a text; all other tasks have the metric "accuracy"


@dataclass(frozen=True)
class ArenaScore:
    """A member's score in a task of the arena.

    written: the member with its keywords.
    mean: mean score on test data over the seeds whose runs did not stop; None if every run stopped.
    interval: 95% confidence interval of the mean; None for a single seed, or if a run stopped.
    rank: 1 + the number of members whose whole interval is better; None for a member that is not compared.
    seeds: number of seeds with a score.
    stopped: number of runs that stopped because the loss was NaN or infinite.
    equal_minutes: whether the member trained for gpt's time in place of gpt's tokens.
    """

    written: str
    mean: float | None
    interval: Interval | None
    rank: int | None
    seeds: int
    stopped: int
    equal_minutes: bool

    @property
    def text(self) -> str:
        """The mean with its interval, such as "2.70 (2.63 to 2.76)", or "no score"."""
        if self.mean is None:
            return "no score"
        return f"{self.mean:.2f}" + ("" if self.interval is None else " ({:.2f} to {:.2f})".format(*self.interval))

    @property
    def not_compared(self) -> str | None:
        """Reason why the score is not compared with others; None for a ranked member."""
        if self.rank is not None:
            return None
        if self.equal_minutes:
            return "trained for gpt's time in place of gpt's tokens"
        if self.stopped:
            return f"{self.stopped} of {self.stopped + self.seeds} runs stopped, because the loss was not finite"
        return f"{self.seeds} seed{'' if self.seeds == 1 else 's'} only"


@dataclass(frozen=True)
class ArenaScores:
    """The scores of all members in a task of the arena.

    name: name of the task.
    metric: "bits per byte" or "accuracy".
    sign: 1 if lower scores are better, -1 if higher scores are better.
    data: name and fingerprint of the data.
    budget: training steps, rows of a batch and, for a text, tokens of a row.
    levels: reference scores, such as the bits per byte of gzip.
    passed: whether gpt has learned the task; other tasks compare no members.
    members: scores by the name of the member, the best mean first.
    """

    name: str
    metric: str
    sign: int
    data: str
    budget: Mapping[str, int]
    levels: Mapping[str, float]
    passed: bool
    members: Mapping[str, ArenaScore]

    @property
    def ranked(self) -> dict[str, ArenaScore]:
        """The members that are compared: with all seeds, and with as many tokens as gpt."""
        return {name: score for name, score in self.members.items() if score.rank is not None}

    def is_better(self, member: str, other: str) -> bool:
        """Return whether the whole interval of a ranked member is better than the interval of another one.

        member, other: names of ranked members.
        """
        first, second = self.members[member].interval, self.members[other].interval
        assert first is not None and second is not None  # ranked members have several seeds
        return is_better(first, second, self.sign)


@cache
def arena_tasks() -> tuple[ArenaScores, ...]:
    """Return the tasks of the table that gpt has learned. `python bench/arena_table.py` writes the table."""
    return read_scores(json.loads(TABLE.read_text(encoding="utf-8")))


def read_scores(table: Mapping[str, Any]) -> tuple[ArenaScores, ...]:
    """Return the tasks of a table that gpt has learned.

    table: the table, as `python bench/arena_table.py` makes it.
    """
    return tuple(_scores_of(record) for record in table["tasks"] if record["passed"])


def _scores_of(record: Mapping[str, Any]) -> ArenaScores:
    members = {}
    for name, fields in record["members"].items():
        ends = fields["interval"]
        members[name] = ArenaScore(**{**fields, "interval": None if ends is None else tuple(ends)})
    return ArenaScores(**{**record, "members": members})
