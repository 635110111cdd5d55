"""RecipeLR: a PyTorch scheduler for the learning rate of a `Recipe` (warm-up and schedule)."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from kinformer.core.checks import check_at_least
from kinformer.core.training_recipe import Recipe


class RecipeLR(LRScheduler):
    """A scheduler that sets the learning rate of each step by a `Recipe`.

    The optimiser's initial rate is the peak rate.

        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = RecipeLR(optimiser, Recipe(warmup=100, schedule="linear"), steps=1000)
        for step in range(1000):
            model(windows.at(step)).total.backward()
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()

    Choose it for a custom training loop, and call `step()` after each optimiser step. `fit` calls `begin(step, spent)`
    instead, with the fraction of its budget that is spent. The rate depends only on these two numbers, so a resumed
    training has the same rates.

    optimiser: the optimiser; its initial rates are the peak rates, and the recipe's `lr` is ignored.
    recipe: the warm-up and the schedule.
    steps: number of steps of the training; None if `begin` is called with the spent fraction. It is not needed for the
        schedules "constant", "inverse_sqrt" and "noam" if the warm-up is a number of steps.

    Errors: ValueError for `steps` below 1. `step` raises it if the rate follows the spent fraction, `steps` is None and
    `begin` was never called.
    """

    def __init__(self, optimiser: Optimizer, recipe: Recipe, steps: int | None = None):
        self.recipe, self.steps = recipe, None if steps is None else check_at_least("steps", steps, 1)
        self.spent: float | None = None  # set by `begin`
        super().__init__(optimiser)

    def get_lr(self) -> list[float | Tensor]:
        """Return the learning rate of each parameter group in the next step."""
        spent = self.spent if self.steps is None else self.last_epoch / self.steps
        if spent is None and self.last_epoch and self.recipe.follows_spent:
            raise ValueError(
                f"RecipeLR cannot compute the spent fraction of the training: got steps=None, expected a number for "
                f"schedule={self.recipe.schedule!r} with warmup={self.recipe.warmup}. Give steps= to RecipeLR."
            )
        return [lr * self.recipe.rate(self.last_epoch, spent or 0.0) for lr in self.base_lrs]

    def begin(self, step: int, spent: float) -> float:
        """Set the learning rates of a step, and return the rate of the first parameter group.

        step: number of the step, from 0.
        spent: fraction of the budget that is spent.
        """
        self.last_epoch, self.spent = step, spent
        rates = self.get_lr()
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr
        self._last_lr = rates
        return float(rates[0])

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state for a checkpoint, without the recipe."""
        return {name: value for name, value in super().state_dict().items() if name != "recipe"}
