"""Settings: everything that determines a training, except its model, its data and its budget."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from kinformer.core.checks import check_at_least, check_finite_number, check_whole_between, check_whole_number
from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.quote import quote
from kinformer.core.training_recipe import Recipe, ScheduleName, noam_peak
from kinformer.lab.train.lora import LoRA

Precision = Literal["float32", "bf16"]
LAST_SEED = 2**63 - 1  # largest seed that both NumPy and PyTorch accept
FINE_TUNING = 5e-5  # learning rate of pretrained weights, the largest that Devlin et al. (2018) tried for BERT
# learning rate of LoRA: ten times the rate of all weights, a factor that Schulman et al. (2025, "LoRA Without Regret")
# found for most models and data
ADAPTING = 10 * FINE_TUNING
SAMPLE = 65_536  # most bytes of a split per measurement; the random error of bits per byte is about 1%


@dataclass(frozen=True)
class Settings(KeywordHints):
    """Settings of a training, except its model, its data and its budget.

    batch: windows or lanes (parallel pieces of one text) per step.
    length: tokens in each window or lane.
    lr: the highest learning rate; by default the rate of the member's recipe; `fine_tuning` has another, and 5e-4 is
        the default with `lora`.
    seed: seed of the windows and of all random numbers in training.
    decay: weight decay of AdamW, for matrices.
    clip: largest norm of the gradient. Parameters that only a penalty (an extra term of the loss) trains are clipped
        separately.
    accumulate: number of micro-batches into which a batch is split to save memory. The gradient is the mean over the
        targets of the whole batch, with three exceptions. First, dropout and other random choices use other random
        numbers, so losses differ as with another seed. Second, a penalty that is a mean over tokens is weighted by
        targets. This is not exactly the mean of the batch if micro-batches have different ratios of tokens to targets.
        Third, parts that compare the rows of a batch compare only the rows of a micro-batch: the contrastive loss of
        `etc`, and the pseudo-inverse of `nystromformer` with norms="batch". The training warns of the third exception.
    precision: "bf16" multiplies matrices in bfloat16 (autocast). Weights, gradients and the optimiser stay in float32.
        So do evaluations, and the actions of an agent before it learns from them.
    checkpointing: blocks keep only their input and recompute the rest in the backward pass. This takes less memory and
        about a third more time. Chen et al., 2016, arXiv:1604.06174.
    compile: compile the model with torch.compile before the first step, which takes a minute or more.
    valid_bytes: number of bytes of validation data in each measurement, spread over the data (`SplitTokens.spread`) and
        the same for every measurement and model. The default is 65,536, or all validation data if it is smaller.
    measures: largest number of measurements. If valid_bytes is not given, there are fewer measurements, but at least
        one, to keep their time below about a quarter of the training's.
    lora: low-rank adaptation: all weights stay frozen, and small changes of the attention matrices are trained and
        then merged into them. `LoRA(rank=8)` has further fields; 8 is short for it.
    plan: a whole `Recipe` instead of the recipe of the member (named model).
    schedule, warmup, betas, eps: fields of `Recipe` (learning rate schedule, warm-up, Adam's betas and eps); by default
        the values of the member's recipe. With schedule="noam" and no lr the peak rate is the rate of the 2017
        Transformer for the width of the model.

    Errors: ValueError if a number is out of range.
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
    lora: LoRA | int | None = None
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
                raise ValueError(f"wrong {name}: got {getattr(self, name)}, expected at least 1")
        for name in ("lr", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"wrong {name}: got {value}, expected a number above 0")
        Recipe(**self.recipe_overrides)  # raises ValueError if a number is out of range
        if not 0 <= self.decay < math.inf:
            raise ValueError(f"wrong decay: got {self.decay}, expected a number of at least 0")
        if self.precision not in get_args(Precision):
            raise ValueError(
                f"wrong precision: got {quote(self.precision)}, expected {' or '.join(get_args(Precision))}"
            )
        if self.accumulate > self.batch:
            raise ValueError(
                f"wrong accumulate: got {self.accumulate}, expected at most {self.batch}, the rows of a batch"
            )
        check_whole_between("seed", self.seed, 0, LAST_SEED)
        if self.valid_bytes is not None:
            check_at_least("valid_bytes", self.valid_bytes, 2)
        if self.lora is not None:
            self._set_lora(self.lora)

    def _set_lora(self, lora: LoRA | int) -> None:
        """Set `lora` from a LoRA or its rank, and set the learning rate unless one is given."""
        if isinstance(lora, int) and not isinstance(lora, bool):
            lora = LoRA(lora)
        if not isinstance(lora, LoRA):
            raise ValueError(f"wrong lora: got {quote(lora)}, expected a rank such as 8, or LoRA(rank=8)")
        object.__setattr__(self, "lora", lora)
        if self.lr is None and self.plan is None and self.schedule != "noam":
            object.__setattr__(self, "lr", ADAPTING)

    @property
    def adapters(self) -> LoRA | None:
        """The field `lora` as a LoRA."""
        return None if self.lora is None or isinstance(self.lora, int) else self.lora

    @property
    def sample_bytes(self) -> int:
        """The largest number of validation bytes that a measurement reads."""
        return self.valid_bytes or SAMPLE

    def recipe(self, model: Any) -> Recipe:
        """Return the recipe: `plan`, or else the member's or the default recipe, with these settings applied.

        Its learning rate is a number, computed from the model's width if the schedule needs that.

        model: the model to train.
        """
        record = getattr(model, "member", None)
        base = self.plan or getattr(record, "recipe", None) or Recipe()
        recipe = replace(base, **self.recipe_overrides, **({} if self.lr is None else {"lr": self.lr}))
        if self.lr is None and (self.schedule == "noam" or base.lr is None):
            warmup = recipe.warmup if recipe.schedule == "noam" else base.warmup
            recipe = replace(recipe, lr=noam_peak(_width(model), warmup))
        return recipe

    def fine_tuning(self) -> "Settings":
        """Return the settings for pretrained weights, with the learning rate `FINE_TUNING`.

        A given rate or plan stays. The rates of new weights would damage pretrained ones.
        """
        return replace(self, lr=FINE_TUNING) if self.lr is None and self.plan is None else self

    @property
    def recipe_overrides(self) -> dict[str, Any]:
        """The given values of schedule, warmup, betas and eps, which replace the recipe's."""
        overrides = {"schedule": self.schedule, "warmup": self.warmup, "betas": self.betas, "eps": self.eps}
        return {name: value for name, value in overrides.items() if value is not None}


def _width(model: Any) -> int:
    """Return the width of a model; ValueError if it has none."""
    for part in (model, getattr(model, "body", None), getattr(model, "decoder", None)):
        if isinstance(width := getattr(part, "d", None), int):
            return width
    raise ValueError(f"schedule='noam' needs the width of the model, but {type(model).__name__} has no d; give lr=")
