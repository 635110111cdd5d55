"""Settings: everything that a training depends on besides its model, its data and its budget."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from kinformer.core.checks import check_at_least, check_finite_number, check_whole_between, check_whole_number
from kinformer.core.training_recipe import Recipe, ScheduleName, noam_peak

Precision = Literal["float32", "bf16"]
LAST_SEED = 2**63 - 1  # of what NumPy and PyTorch both take
SAMPLE = 65_536  # bytes of a split that are measured, if it has more: its bits per byte are off by about 1% by chance


@dataclass(frozen=True)
class Settings:
    """What a training depends on besides its model, its data and its budget.

    batch: windows or lanes that a step learns from.
    length: the tokens in each of them.
    lr: the highest learning rate, the member's own unless given.
    seed: of the windows, and of what chance there is in training.
    decay: AdamW's weight decay, of matrices.
    clip: the most that a gradient's norm may be, apart for what a penalty alone trains.
    accumulate: number of pieces of a batch that are read one after the other, which takes less memory. The gradient is
        the mean over the targets of the whole batch, with three exceptions. First, dropout and other random choices
        draw other numbers for pieces, so losses differ as with another seed. Second, a penalty per token is weighted
        by targets, which is not exactly its mean if pieces have different ratios of tokens to targets. Third, parts
        that compare the rows of a batch compare only the rows of a piece: the contrastive loss of `etc`, and the
        pseudo-inverse of `nystromformer` with norms="batch". The training warns of the third.
    precision: "bf16" multiplies matrices in bfloat16 (autocast); weights, their gradients and the optimiser stay
        float32, and so do measurements, and what an agent does before it learns from it.
    checkpointing: blocks keep their input alone, and compute the rest again for the backward: less memory, and about a
        third more time. Chen et al., 2016, arXiv:1604.06174.
    compile: let torch.compile make a program of the model first, which takes a minute or more.
    valid_bytes: number of bytes of valid that each measurement reads, spread over valid (`Part.spread`) and the same
        for every measurement and model. By default 65,536, or all of a smaller valid.
    measures: largest number of measurements. If valid_bytes is not given, there are fewer measurements, but at least
        one, to keep their time below about a quarter of the training's.
    plan: a whole recipe instead of the member's.
    schedule, warmup, betas, eps: as in `Recipe`; the member's own unless given. With schedule="noam" and no lr the
        peak rate is that of the 2017 Transformer for the width of the model.

    Errors: ValueError for numbers without a meaning.
    """

    batch: int = 16
    length: int = 256
    lr: float | None = None
    seed: int = 0
    decay: float = 0.1
    clip: float = 1.0
    accumulate: int = 1
    precision: Precision = "float32"
    checkpointing: bool = False
    compile: bool = False
    measures: int = 6
    valid_bytes: int | None = None
    plan: Recipe | None = None
    schedule: ScheduleName | None = None
    warmup: float | int | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "length", "accumulate", "measures", "seed"):
            check_whole_number(name, getattr(self, name))
        for name in ("clip", "decay", *(["lr"] if self.lr is not None else [])):
            check_finite_number(name, getattr(self, name))
        for name in ("batch", "length", "accumulate", "measures"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, and {getattr(self, name)} came")
        for name in ("lr", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0, and {value} came")
        Recipe(**self.recipe_overrides)  # ValueError for numbers without a meaning
        if not 0 <= self.decay < math.inf:
            raise ValueError(f"decay must not be negative, and {self.decay} came")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision={self.precision!r} is not known; choose {' or '.join(get_args(Precision))}")
        if self.accumulate > self.batch:
            raise ValueError(
                f"accumulate={self.accumulate} is more than the {self.batch} rows of a batch; give at most as many"
            )
        check_whole_between("seed", self.seed, 0, LAST_SEED)
        if self.valid_bytes is not None:
            check_at_least("valid_bytes", self.valid_bytes, 2)

    @property
    def sample_bytes(self) -> int:
        """The largest number of bytes of a split that a measurement reads."""
        return self.valid_bytes or SAMPLE

    def recipe(self, model: Any) -> Recipe:
        """The plan, else the member's recipe, else the default recipe, each with the given settings applied.

        Its learning rate is always a number, even if it follows from the width of the model.
        """
        record = getattr(model, "member", None)
        base = self.plan or getattr(record, "recipe", None) or Recipe()
        recipe = replace(base, **self.recipe_overrides, **({} if self.lr is None else {"lr": self.lr}))
        if self.lr is None and (self.schedule == "noam" or base.lr is None):
            warmup = recipe.warmup if recipe.schedule == "noam" else base.warmup
            recipe = replace(recipe, lr=noam_peak(_width(model), warmup))
        return recipe

    @property
    def recipe_overrides(self) -> dict[str, Any]:
        """The settings that override those of the recipe."""
        overrides = {"schedule": self.schedule, "warmup": self.warmup, "betas": self.betas, "eps": self.eps}
        return {name: value for name, value in overrides.items() if value is not None}


def _width(model: Any) -> int:
    """The width of a model; ValueError where it has none."""
    for part in (model, getattr(model, "body", None), getattr(model, "decoder", None)):
        if isinstance(width := getattr(part, "d", None), int):
            return width
    raise ValueError(f"schedule='noam' follows the width of a model, and {type(model).__name__} has none; give lr=")
