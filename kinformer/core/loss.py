"""Loss, the result of a model in training, and Penalty, an auxiliary loss and what it trains."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32
from kinformer.core.checks import check_in_range
from kinformer.core.keyword_hints import hint_value
from kinformer.core.layer import State

CHOICES = "log_p"  # the penalty of parts that choose at random: the log-probability of each choice, for a reward
LEAVING = "leaving"  # the loss of a rule for early exits, which the model computes from all exits


class Loss(NamedTuple):
    """The loss of a batch, with its parts.

    total: the mean negative log-likelihood in nats per target plus the weighted penalties.
    parts: each part of the loss by name.
    state: the model's state after the batch, or None.
    stats: detached sums for the method `after_step` of modules.
    count: the number of targets in the mean; it is the weight of this mean in a mean over batches or processes.
    """

    total: Tensor
    parts: Mapping[str, Tensor]
    state: State | None = None
    stats: Mapping[str, Tensor] = {}  # noqa: RUF012
    count: Tensor | int = 1  # type: ignore[assignment]


hint_value(
    Loss, "a model returns Loss", "model(batch).total", loss="model(batch).total", logits="model.logits(tokens).y"
)


class Penalty(NamedTuple):
    """The declaration of an auxiliary loss that a part reports.

    trains: the parameters that it trains.
    reaches_x: True if it also trains earlier modules, through the part's input. In an Attention these include its
        projection and the matrices of its extra projections.
    alone: True if no other loss trains these parameters. A training then clips their gradient separately, so that a
        large gradient does not slow other weights.
    by: the model's keyword that sets the weight of the penalty; None if the keyword `penalties` sets it.
    """

    trains: tuple[nn.Parameter, ...]
    reaches_x: bool = False
    alone: bool = False
    by: str | None = None


def penalties_of(*modules: nn.Module | None) -> dict[str, list[Penalty]]:
    """Return every penalty that parts of these modules declare in `penalties()`, by name.

    modules: modules, or None for a missing one.
    """
    by_name: dict[str, list[Penalty]] = {}
    for module in modules:
        for part in () if module is None else module.modules():
            declared = getattr(part, "penalties", None)
            for name, penalty in (declared() if callable(declared) else {}).items():
                by_name.setdefault(name, []).append(penalty)
    return by_name


def token_nll(
    logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"], smoothing: float = 0.0
) -> Float[Tensor, "B T"]:
    """Return -log p of each target in nats, in float32 or better; 0 without a target.

    logits: scores, [B T V].
    targets: token ids; -1, or another negative number, for no target.
    smoothing: label smoothing, the part of each target's probability 1 that is spread evenly over all tokens.
    """
    wide = at_least_float32(logits)
    flat = F.cross_entropy(
        wide.flatten(0, 1),
        targets.flatten().long().clamp_min(-1),
        ignore_index=-1,
        reduction="none",
        label_smoothing=smoothing,
    )  # with the vocabulary in another dimension than the last it takes three times as long
    return flat.view(targets.shape)


def masked_mean(values: Tensor, real: Tensor) -> Float[Tensor, ""]:
    """Return the mean of the values at which `real` is True; 0 if there is none.

    values: the values.
    real: True at the values that count.
    """
    return values.where(real, 0.0).sum() / real.sum().clamp_min(1)


def sum_over_layers(aux: Mapping[str, Tensor], real: Tensor) -> dict[str, Tensor]:
    """Sum the values that layers report (`Out.aux`) over layers, by the last part of their names.

    "3.0.ponder" and "5.0.ponder" add up to "ponder". Values per token [B T] count by their mean over real tokens,
    penalties on parameters [] as they are.

    aux: reported values by name.
    real: True at real tokens, [B T].
    """
    sums: dict[str, Tensor] = {}
    for key, value in aux.items():
        name = key.rpartition(".")[2]
        sums[name] = sums.get(name, 0) + (masked_mean(value, real) if value.dim() else value)
    return sums


class FadingWeight(NamedTuple):
    """The weight of a penalty that is constant first and then falls linearly to 0.

    weight: the constant weight.
    hold: the fraction of the training with the constant weight, from 0 to 1.
    """

    weight: float
    hold: float = 0.5

    def weight_at(self, progress: float) -> float:
        """Return the weight when the fraction `progress` of the training is done."""
        left = 1.0 if progress <= self.hold else (1 - progress) / (1 - self.hold)
        return self.weight * max(left, 0.0)


Weight = float | FadingWeight


def weighted_loss(nll: Tensor, sums: Mapping[str, Tensor], penalties: Mapping[str, Weight], progress: float) -> Tensor:
    """Return the loss plus its weighted penalties.

    Values in `sums` without a weight are not added.

    nll: the main loss, a mean negative log-likelihood.
    sums: reported penalties, summed over layers, by name.
    penalties: the weight of each penalty by name.
    progress: the finished fraction of the training, from 0 to 1.
    """
    now = {
        name: value.weight_at(progress) if isinstance(value, FadingWeight) else value
        for name, value in penalties.items()
    }
    return nll + sum(weight * sums[name] for name, weight in now.items() if name in sums)


def check_known_penalties(weights: Mapping[str, Weight], modules: Iterable[nn.Module | None]) -> dict[str, Weight]:
    """Return the weights of penalties after a check that parts of the model report these penalties.

    weights: the weight of each penalty by name.
    modules: the modules that may report penalties.

    Errors: ValueError if no part reports a penalty of a name, or if another keyword of the model sets its weight. Also
    if a weight is below 0, which would make the penalty a reward.
    """
    declared = penalties_of(*modules)
    for name, weight in weights.items():
        if name not in declared:
            names = (
                ", ".join(sorted(name for name in declared if not any(part.by for part in declared[name]))) or "none"
            )
            raise ValueError(f"penalties={dict(weights)}: no part of this model reports {name!r}; it reports {names}")
        if by := next((penalty.by for penalty in declared[name] if penalty.by), None):
            raise ValueError(
                f"penalties={dict(weights)}: {name!r} has another keyword for its weight; give {by}={weight}"
            )
        start, hold = weight if isinstance(weight, FadingWeight) else (weight, 0.0)
        check_in_range(f"penalties[{name!r}]", start, 0, math.inf)
        check_in_range(f"penalties[{name!r}].hold", hold, 0, 1)
    return dict(weights)
