"""Budget of a training: a number of steps, or minutes of training time."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from kinformer.core.checks import check_finite_number, check_whole_number

TURN, STEPS, MOST = 10.0, 20, 24  # seconds of a turn; least steps of a turn; greatest number of turns


class Budget(ABC):
    """Base class of budgets: the steps or the time that a training may spend.

    The learning rate schedule follows the fraction of the budget that is spent.
    """

    @abstractmethod
    def fraction_spent(self, step: int, seconds: float) -> float:
        """Return the fraction of the budget that is spent; the training ends at 1.

        step: number of steps taken.
        seconds: training time of these steps.
        """

    @abstractmethod
    def bytes_measured(self, tokens: int, speed: Callable[[], float]) -> float:
        """Return how many bytes can be evaluated in the time that the whole training takes.

        The number of measurements follows from it. A budget in steps uses no clock: evaluating a byte counts as half
        the work of learning from a token.

        tokens: tokens per step.
        speed: returns the evaluation speed, in bytes per second.
        """

    @property
    @abstractmethod
    def record(self) -> str:
        """The budget as run folders record it, such as "Steps(count=100)".

        Its form stays the same, so that old runs resume.
        """

    @property
    @abstractmethod
    def turns(self) -> int:
        """The number of turns into which the budget is split if a comparison trains several models in turns."""


@dataclass(frozen=True)
class StepBudget(Budget):
    """A number of optimiser steps: the training is the same on every machine.

    count: number of steps, at least 1.
    """

    count: int

    def __post_init__(self) -> None:
        if check_whole_number("steps", self.count) < 1:
            raise ValueError(f"wrong number of steps: got {self.count}, expected at least 1")

    def fraction_spent(self, step: int, seconds: float) -> float:
        """Return `step / count`."""
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
    """Minutes of training time, without evaluation and saving: the same time for models on one machine.

    count: number of minutes, above 0.
    """

    count: float

    def __post_init__(self) -> None:
        if check_finite_number("minutes", self.count) <= 0:
            raise ValueError(f"wrong number of minutes: got {self.count:g}, expected a number above 0")

    def fraction_spent(self, step: int, seconds: float) -> float:
        """Return the elapsed training time divided by the budget; 0 before the first step."""
        return seconds / (60 * self.count) if step else 0.0

    def bytes_measured(self, tokens: int, speed: Callable[[], float]) -> float:
        return 60 * self.count * speed()

    @property
    def record(self) -> str:
        return f"Minutes(count={self.count!r})"

    @property
    def turns(self) -> int:
        return ceil(60 * self.count / TURN)


def make_budget(minutes: float | None, steps: int | None) -> Budget:
    """Return the budget of the one argument that is given.

    minutes, steps: length of a training.

    Errors: ValueError if both or none are given, or if the length is not above 0.
    """
    if (minutes is None) == (steps is None):
        raise ValueError("give either minutes= or steps=, the length of the training")
    return StepBudget(steps) if steps is not None else MinuteBudget(minutes or 0.0)
