"""Settings: everything that a training depends on besides its model, its data and its budget."""

import math
from dataclasses import dataclass
from typing import Any

from kinformer.train.recipe import Recipe


@dataclass(frozen=True)
class Settings:
    """`batch` windows or lanes of `length` tokens; `lr` is the highest learning rate, the member's own unless given;
    `plan` is a whole recipe instead of the member's.

    `clip` bounds the gradient's norm, apart for what a penalty alone trains; `measures` says how often the valid data
    is measured at most, a text on its first `valid_bytes` bytes: as many as a tenth of the training's time allows
    unless given.
    """

    batch: int = 16
    length: int = 256
    lr: float | None = None
    seed: int = 0
    decay: float = 0.1
    clip: float = 1.0
    measures: int = 6
    valid_bytes: int | None = None
    plan: Recipe | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "length", "measures"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, and {getattr(self, name)} came")
        for name in ("lr", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0, and {value} came")
        if self.seed < 0 or (self.valid_bytes is not None and self.valid_bytes < 2):
            raise ValueError("seed must not be negative, and valid_bytes must be at least 2")

    def recipe(self, model: Any) -> Recipe:
        """This plan, the recipe that the model's member brings, or the usual one; with this learning rate, if any."""
        record = getattr(model, "member", None)
        found = self.plan or getattr(record, "recipe", None) or Recipe()
        return found if self.lr is None else Recipe(self.lr, found.warmup, found.schedule)
