"""RecipeLR: the learning rate of a `Recipe` as a scheduler of PyTorch."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from kinformer.core.checks import at_least
from kinformer.train.recipe import Recipe


class RecipeLR(LRScheduler):
    """The learning rate of each step by a recipe; the optimiser's own rate is the highest.

        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = RecipeLR(optimiser, Recipe(warmup=100, schedule="linear"), steps=1000)
        for step in range(1000):
            model(windows.at(step)).total.backward()
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()

    Choose it in a loop of one's own; `fit` has one already, whose rate follows the part of the budget that is spent:
    `begin(step, spent)`. The rate depends on these two numbers alone, so a training that is resumed has the same rates.

    optimiser: whose rates are set; those that it has are the highest ones, whatever the recipe's `lr` is.
    recipe: the warm-up and the schedule.
    steps: the number of steps of the training; None where `begin` says what is spent. A warm-up in steps under
        "constant", "inverse_sqrt" or "noam" needs neither.

    Errors: ValueError for `steps` below 1, and from `step` if the rate follows the part that is spent, `steps` is None
    and `begin` was never called.
    """

    def __init__(self, optimiser: Optimizer, recipe: Recipe, steps: int | None = None):
        self.recipe, self.steps = recipe, None if steps is None else at_least("steps", steps, 1)
        self.spent: float | None = None  # until `begin` says it
        super().__init__(optimiser)

    def get_lr(self) -> list[float | Tensor]:
        """The rate of each group of parameters in the step that comes."""
        spent = self.spent if self.steps is None else self.last_epoch / self.steps
        if spent is None and self.last_epoch and self.recipe.follows_spent:
            raise ValueError(
                f"RecipeLR cannot tell the part of the training that is spent: got steps=None, expected a number for "
                f"schedule={self.recipe.schedule!r} with warmup={self.recipe.warmup}. Give steps= to RecipeLR."
            )
        return [lr * self.recipe.rate(self.last_epoch, spent or 0.0) for lr in self.base_lrs]

    def begin(self, step: int, spent: float) -> float:
        """Set the rates of a step, counted from 0, that begins when this part of the budget is spent; the first one."""
        self.last_epoch, self.spent = step, spent
        rates = self.get_lr()
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr
        self._last_lr = rates
        return float(rates[0])

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it; the recipe is given again."""
        return {name: value for name, value in super().state_dict().items() if name != "recipe"}
