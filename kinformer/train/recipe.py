"""Recipe: how a member wants to be trained. It imports no torch, so that declaring a member costs nothing."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Schedule = Literal["cosine", "inverse_sqrt", "constant"]
FLOOR = 0.1


@dataclass(frozen=True)
class Recipe:
    """The learning rate of a training, over its length: `@member(recipe=Recipe(lr=5e-4, warmup=0.2))`.

    lr: the highest learning rate.
    warmup: the part of the training, from 0 to 1, in which it rises to that in a line; post-norm blocks want more.
    schedule: what follows. "cosine": half a cosine down to a tenth. "inverse_sqrt": lr * sqrt(warmup / spent), the
        2017 Transformer's. "constant": nothing.

    Errors: ValueError for numbers without a meaning, and "inverse_sqrt" without a warm-up. Source: cosine: Loshchilov
    and Hutter, 2017, arXiv:1608.03983; inverse_sqrt: Vaswani et al., 2017, arXiv:1706.03762, section 5.3.
    """

    lr: float = 2e-3
    warmup: float = 0.05
    schedule: Schedule = "cosine"

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above 0, and {self.lr} came")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup is a part of the training, from 0 to 1, and {self.warmup} came")
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"schedule={self.schedule!r} is not known; choose {', '.join(get_args(Schedule))}")
        if self.schedule == "inverse_sqrt" and not self.warmup:
            raise ValueError("schedule='inverse_sqrt' falls from the end of its warm-up; give warmup above 0")

    def rate(self, spent: float) -> float:
        """The learning rate over its peak when a part of the training, from 0 to 1, is spent."""
        if spent < self.warmup:
            return max(spent / self.warmup, 0.01)
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "inverse_sqrt":
            return math.sqrt(self.warmup / spent)
        along = min((spent - self.warmup) / ((1 - self.warmup) or 1), 1.0)
        return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * along)) / 2
