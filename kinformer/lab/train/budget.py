"""How long a training lasts: a number of steps, or minutes of training time."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from kinformer.core.checks import check_finite_number, check_whole_number

TURN, STEPS, MOST = 10.0, 20, 24  # seconds of a turn; steps of one at least, and so many turns at most


class Budget(ABC):
    """What a training may spend; its schedule follows the part that is spent."""

    @abstractmethod
    def fraction_spent(self, step: int, seconds: float) -> float:
        """The part of the budget spent after `step` steps that took `seconds` of training time; 1 is the end."""

    @abstractmethod
    def bytes_measured(self, tokens: int, speed: Callable[[], float]) -> float:
        """How many bytes can be measured in the time that the whole training takes.

        A step learns from so many tokens; `speed` tells how many bytes a second are measured. With a number of steps no
        clock is looked at: measuring a byte counts as half of learning from it.
        """

    @property
    @abstractmethod
    def record(self) -> str:
        """The budget as runs record it, such as "Steps(count=100)"; it stays the same, so that old runs resume."""

    @property
    @abstractmethod
    def turns(self) -> int:
        """In how many pieces it is spent where several trainings take turns."""


@dataclass(frozen=True)
class StepBudget(Budget):
    """A number of optimiser steps: the same training on every machine."""

    count: int

    def __post_init__(self) -> None:
        if check_whole_number("steps", self.count) < 1:
            raise ValueError(f"wrong number of steps: got {self.count}, expected at least 1")

    def fraction_spent(self, step: int, seconds: float) -> float:
        """The steps taken, over all."""
        return step / self.count

    def bytes_measured(self, tokens: int, speed: Callable[[], float]) -> float:
        return 2.0 * self.count * tokens

    @property
    def record(self) -> str:
        return f"Steps(count={self.count!r})"

    @property
    def turns(self) -> int:
        return max(1, min(self.count // STEPS, MOST))


@dataclass(frozen=True)
class MinuteBudget(Budget):
    """Minutes of training time, evaluation and saving not counted: a fair race on one machine."""

    count: float

    def __post_init__(self) -> None:
        if check_finite_number("minutes", self.count) <= 0:
            raise ValueError(f"wrong number of minutes: got {self.count:g}, expected a number above 0")

    def fraction_spent(self, step: int, seconds: float) -> float:
        """The training time gone by, over all; never the end before a first step."""
        return seconds / (60 * self.count) if step else 0.0

    def bytes_measured(self, tokens: int, speed: Callable[[], float]) -> float:
        return 60 * self.count * speed()

    @property
    def record(self) -> str:
        return f"Minutes(count={self.count!r})"

    @property
    def turns(self) -> int:
        return ceil(60 * self.count / TURN)
