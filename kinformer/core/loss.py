"""Loss: what a model returns in training; Penalty: an auxiliary loss and the parameters it moves."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from kinformer.core.layer import State


class Loss(NamedTuple):
    """`total` is the mean negative log-likelihood in nats per target plus the weighted penalties.

    `parts` holds each by name.
    """

    total: Tensor
    parts: Mapping[str, Tensor]
    state: State | None = None
    stats: Mapping[str, Tensor] = {}  # noqa: RUF012


class Penalty(NamedTuple):
    """An auxiliary loss: the last name of its key in `aux`, and which parameters it moves, by name."""

    key: str
    moves: Callable[[str], bool]


def gathered(aux: Mapping[str, Tensor], real: Tensor) -> dict[str, Tensor]:
    """Aux by the last name of its key, summed over layers.

    Values per token [B T] as the mean over real tokens, penalties [] as they are.
    """
    count = real.sum().clamp_min(1)
    sums: dict[str, Tensor] = {}
    for key, value in aux.items():
        name = key.rpartition(".")[2]
        one = (value * real).sum() / count if value.dim() else value
        sums[name] = sums[name] + one if name in sums else one
    return sums


def weighed(nll: Tensor, sums: Mapping[str, Tensor], penalties: Mapping[str, float]) -> Tensor:
    """The loss with its penalties; aux without a weight is only reported."""
    return nll + sum(weight * sums[name] for name, weight in penalties.items() if name in sums)
