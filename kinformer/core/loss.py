"""Loss: what a model returns in training; Penalty: an auxiliary loss and the parameters it trains."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.autocast import at_least_float32
from kinformer.core.checks import check_in_range
from kinformer.core.layer import State

CHOICES = "log_p"  # the penalty of parts that choose by chance: per token the log of what was chosen, for a reward
LEAVING = "leaving"  # the loss of a rule by which tokens leave a stack, which the model computes from all exits


class Loss(NamedTuple):
    """`total` is the mean negative log-likelihood in nats per target plus the weighted penalties.

    `parts` holds each by name; `count` is the number of targets that the mean was taken over, so that means of several
    batches or processes can be put together.
    """

    total: Tensor
    parts: Mapping[str, Tensor]
    state: State | None = None
    stats: Mapping[str, Tensor] = {}  # noqa: RUF012
    count: Tensor | int = 1  # type: ignore[assignment]


class Penalty(NamedTuple):
    """An auxiliary loss that a part reports: the parameters it trains.

    `reaches_x` says that it also trains, through the part's input, whatever lies beneath: in an Attention its
    projection and the matrices of its extra projections too. `alone` says that no other loss trains these parameters,
    so that a training clips their gradient separately, so that a large gradient does not slow other weights. `by` names
    the keyword of the model that sets the weight of the penalty; without it `penalties=` sets the weight.
    """

    trains: tuple[nn.Parameter, ...]
    reaches_x: bool = False
    alone: bool = False
    by: str | None = None


def penalties_of(*modules: nn.Module | None) -> dict[str, list[Penalty]]:
    """Every penalty that parts of these modules declare by `penalties()`, by name."""
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
    """-log p of each wanted token in nats, 0 where none (-1) is wanted; in float32 or better.

    `smoothing` is the share of each target's probability that is spread evenly over all tokens.
    """
    wide = at_least_float32(logits)
    flat = F.cross_entropy(
        wide.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none", label_smoothing=smoothing
    )  # a vocabulary that is not the last dimension costs three times as much
    return flat.view(targets.shape)


def masked_mean(values: Tensor, real: Tensor) -> Float[Tensor, ""]:
    """The mean of the real values; 0 where there is none."""
    return values.where(real, 0.0).sum() / real.sum().clamp_min(1)


def sum_over_layers(aux: Mapping[str, Tensor], real: Tensor) -> dict[str, Tensor]:
    """Aux by the last name of its key, summed over layers.

    Values per token [B T] as the mean over real tokens, penalties [] as they are.
    """
    sums: dict[str, Tensor] = {}
    for key, value in aux.items():
        name = key.rpartition(".")[2]
        sums[name] = sums.get(name, 0) + (masked_mean(value, real) if value.dim() else value)
    return sums


class FadingWeight(NamedTuple):
    """The weight of a penalty that stays for the first part of a training and then falls in a line to 0 at its end."""

    weight: float
    hold: float = 0.5

    def weight_at(self, progress: float) -> float:
        """The weight when this part of the training is done."""
        left = 1.0 if progress <= self.hold else (1 - progress) / (1 - self.hold)
        return self.weight * max(left, 0.0)


Weight = float | FadingWeight


def weighted_loss(nll: Tensor, sums: Mapping[str, Tensor], penalties: Mapping[str, Weight], progress: float) -> Tensor:
    """The loss with its penalties when this part of the training is done; aux without a weight is only reported."""
    now = {
        name: value.weight_at(progress) if isinstance(value, FadingWeight) else value
        for name, value in penalties.items()
    }
    return nll + sum(weight * sums[name] for name, weight in now.items() if name in sums)


def check_known_penalties(weights: Mapping[str, Weight], modules: Iterable[nn.Module | None]) -> dict[str, Weight]:
    """The weights of penalties; ValueError for a name that no part reports and a weight below 0, a reward."""
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
