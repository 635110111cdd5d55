"""Recipe: the training settings of a member (named model).

This module imports no torch, so that a declaration of a member is fast.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from kinformer.core.quote import quote

ScheduleName = Literal["cosine", "linear", "constant", "inverse_sqrt", "noam"]
ADVICE = {  # the names of other libraries
    "constant_with_warmup": "give schedule='constant' with warmup=",
    "cosine_with_restarts": "give schedule='cosine'",
    "polynomial": "give schedule='linear'",
}
LR = 2e-3  # the default of the highest learning rate
FLOOR = 0.1  # the last rate of "cosine", divided by the highest
FIRST = 0.01  # the smallest rate of a warm-up, divided by the highest: a first step at 0 would learn nothing
NOAM_STEPS = 100_000  # steps of the 2017 Transformer's base model, including 4,000 of warm-up


@dataclass(frozen=True)
class Recipe:
    """The learning-rate schedule and Adam settings of a training.

    For example `@member(recipe=Recipe(lr=5e-4, warmup=0.2))`. The rate rises linearly from 0 to `lr` during the warm-up
    and then follows the schedule. The first steps use at least `lr` / 100, because a step at 0 would learn nothing;
    "noam" counts steps from 1 instead.

    In the schedules, `s` is the spent fraction of the budget in steps or minutes, from 0 to 1, and `w` is the value of
    `s` at the end of the warm-up. Every schedule except "noam" therefore ends together with the budget, on a slow
    machine too.

    lr: the highest learning rate. The default is 2e-3, and (d warmup)^-1/2 under "noam", where d is the width of the
        model.
    warmup: a float is a fraction of the training, from 0 to 1; an int is a number of steps. Post-norm blocks need a
        longer warm-up. Under a budget of minutes, the `w` of a warm-up in steps follows from the mean time of a step so
        far.
    schedule: the rate after the warm-up, divided by `lr`.
        "cosine": 0.1 + 0.9 (1 + cos(pi (s - w) / (1 - w))) / 2.
        "linear": 1 - (s - w) / (1 - w).
        "constant": 1.
        "inverse_sqrt": sqrt(w / s), which is sqrt(warmup / step) for a warm-up in steps.
        "noam": the 2017 Transformer's, d^-1/2 min(t^-1/2, t warmup^-3/2) in step t = 1, 2, ... With a warm-up in steps
            it depends only on the step, never on the budget. With a fraction as warm-up, the 100,000 steps of the
            paper's base model are scaled to the length of the training: t = 100,000 s.
    betas: Adam's decay rates for the running means of the gradient and of its square.
    eps: constant that Adam adds to the root of the mean square.

    Errors: ValueError if a number is out of range, or if "inverse_sqrt" or "noam" has no warm-up. Sources:
    cosine: Loshchilov and Hutter, 2016, arXiv:1608.03983; inverse_sqrt and noam: Vaswani et al., 2017,
    arXiv:1706.03762, section 5.3; Adam: Kingma and Ba, 2014, arXiv:1412.6980.
    """

    lr: float | None = None
    warmup: float | int = 0.05
    schedule: ScheduleName = "cosine"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.schedule not in get_args(ScheduleName):
            advice = ADVICE.get(str(self.schedule), f"choose {', '.join(get_args(ScheduleName))}")
            raise ValueError(f"schedule={quote(self.schedule)} is not known; {advice}")
        check_warmup(self.warmup)
        if self.lr is None and self.schedule != "noam":
            object.__setattr__(self, "lr", LR)
        if self.lr is not None and not _is_positive(self.lr):
            raise ValueError(f"lr must be above 0, got {quote(self.lr)}")
        if self.schedule in ("inverse_sqrt", "noam") and not self.warmup:
            raise ValueError(f"schedule={self.schedule!r} decays from the end of the warm-up; give warmup above 0")
        check_betas(self.betas)
        check_eps(self.eps)

    @property
    def follows_spent(self) -> bool:
        """True if the learning rate depends on the spent fraction of the budget and not only on the step."""
        return self.schedule in ("cosine", "linear") or (isinstance(self.warmup, float) and self.warmup > 0)

    @property
    def peak(self) -> float:
        """The highest learning rate; ValueError if it depends on the model."""
        if self.lr is None:
            raise ValueError(
                "schedule='noam' computes its highest rate from the width of the model, which is unknown here; give lr="
            )
        return self.lr

    def rate(self, step: int, spent: float) -> float:
        """Return the learning rate of a step, divided by the highest rate of the training.

        `step` counts from 0, and `spent` is the fraction of the budget (steps or minutes) before this step.
        """
        if self.schedule == "noam":
            step, spent = step + 1, spent + 1 / NOAM_STEPS
        now, end = (step, self.warmup) if isinstance(self.warmup, int) else (spent, self.warmup)
        if now < end:
            return now / end if self.schedule == "noam" else max(now / end, FIRST)
        if self.schedule == "constant":
            return 1.0
        if self.schedule in ("inverse_sqrt", "noam"):
            return math.sqrt(end / now)
        begun = spent * end / now if now else 0.0  # spent fraction at the end of the warm-up
        along = min((spent - begun) / ((1 - begun) or 1), 1.0)
        return 1 - along if self.schedule == "linear" else FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * along)) / 2


def noam_peak(d: int, warmup: float | int) -> float:
    """Return the highest learning rate of the schedule "noam": (d warmup)^-1/2, the warm-up in steps.

    d: the width of the model.
    warmup: the warm-up, a number of steps or a fraction of 100,000 steps.
    """
    return (d * (warmup if isinstance(warmup, int) else warmup * NOAM_STEPS)) ** -0.5


def check_warmup(warmup: float | int) -> float | int:
    """Return the warm-up of a learning-rate schedule after a check.

    warmup: a float from 0 to 1 (fraction of the training) or an int (steps).

    Errors: ValueError for any other value.
    """
    steps = isinstance(warmup, int) and not isinstance(warmup, bool) and warmup >= 0
    if not steps and not (isinstance(warmup, float) and 0 <= warmup <= 1):
        raise ValueError(
            f"warmup={quote(warmup)}: give a fraction of the training from 0.0 to 1.0, such as 0.05, or an integer "
            "number of steps"
        )
    return warmup


def check_betas(betas: tuple[float, float]) -> tuple[float, float]:
    """Return Adam's two decay rates after a check.

    betas: two numbers from 0 to below 1.

    Errors: ValueError for any other value.
    """
    good = isinstance(betas, tuple) and len(betas) == 2
    if not good or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas={quote(betas)}: give two numbers from 0 to below 1, such as (0.9, 0.98)")
    return betas


def check_eps(eps: float) -> float:
    """Return Adam's eps, the constant in its denominator, after a check.

    eps: a number above 0.

    Errors: ValueError for any other value.
    """
    if not _is_positive(eps):
        raise ValueError(f"eps={quote(eps)}: give a number above 0, such as 1e-9")
    return eps


def _is_positive(value: object) -> bool:
    """Return True for a finite number above 0."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < value < math.inf  # type: ignore[operator]
