"""Warnings about trainings whose model is not better than a guess."""

import sys
from collections.abc import Callable, Mapping

from kinformer.lab.train.budget import Budget
from kinformer.lab.train.guess_level import GuessLevel
from kinformer.lab.train.history import History


class GuessWarning:
    """Logger that warns on stderr, once, if bits during a training are not better than a guess.

    The last measurement is left out, because the command reports it at its end. So is accuracy, which may stay at the
    level of a guess for long.

    name: name of the training.
    level: function that returns the score of the guess; None if the metric has no such level.
    budget: budget of the training.
    """

    def __init__(self, name: str, level: Callable[[], GuessLevel | None], budget: Budget) -> None:
        self.name, self.level, self.budget, self.is_done = name, level, budget, False

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Check a measurement; the numbers of a step are ignored."""
        if self.is_done or "valid" not in numbers or self.budget.fraction_spent(step, 60 * numbers["minutes"]) >= 1:
            return
        level, value = self.level(), numbers["valid"]
        self.is_done = level is None or level.metric.unit != "bits"
        if not self.is_done and level is not None and not level.is_better(value):
            self.is_done = True
            print(
                f"warning: {self.name}: {value:,.3f} {level.metric.name} on validation data at step {step:,} is not "
                f"better than {level}",
                file=sys.stderr,
            )

    def close(self) -> None:
        """Do nothing."""


def warn_of_guessing(history: History, level: GuessLevel | None, lr: float) -> None:
    """Print a warning on stderr if the best measurement of a training is not better than a guess.

    history: the measurements of the training.
    level: the score of the guess; None if the metric has no such level.
    lr: highest learning rate of the training, for the advice.
    """
    if level is not None and not level.is_better(history.best.valid):
        print(
            f"warning: the best result, {history.best.valid:,.3f} {level.metric.name}, is not better than {level}. "
            f"Train longer, or with a --lr below {lr:g}",
            file=sys.stderr,
        )
