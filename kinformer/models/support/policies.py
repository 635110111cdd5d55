"""Policies: heads that predict a distribution over actions, and sample from it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from jaxtyping import Float
from numpy.random import Generator
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from kinformer.core.autocast import linear_float32
from kinformer.core.keyword_hints import KeywordHints

START = 0.01  # factor of a head's initial weights, so that all actions are about equally likely at first


class Policy(nn.Module, KeywordHints, ABC):
    """Base class of policies: a linear head that gives the parameters of a distribution over actions.

    A subclass supplies `distribution`.

    d: width of the model.
    numbers: number of parameters of the distribution.
    """

    def __init__(self, d: int, numbers: int):
        super().__init__()
        self.head = nn.Linear(d, numbers)
        with torch.no_grad():
            self.head.weight.mul_(START)
            self.head.bias.zero_()

    def forward(self, y: Float[Tensor, "*n D"]) -> Float[Tensor, "*n K"]:
        """Return the parameters of the distribution, in float32 or better, also under autocast."""
        return linear_float32(self.head, y)

    @abstractmethod
    def distribution(self, parameters: Float[Tensor, "*n K"]) -> Distribution:
        """Return the distribution with these parameters.

        parameters: result of `forward`.
        """

    @abstractmethod
    def sample(self, parameters: Float[Tensor, "B K"], rngs: Sequence[Generator]) -> Tensor:
        """Return one action for each row, sampled with the row's random generator.

        The action does not depend on other rows of the batch or on the device.

        parameters: result of `forward`.
        rngs: generator of each row.
        """


class CategoricalPolicy(Policy):
    """Policy for discrete actions: a categorical distribution over the kinds of actions."""

    def distribution(self, logits: Float[Tensor, "*n K"]) -> Distribution:
        return Categorical(logits=logits, validate_args=False)

    def sample(self, logits: Float[Tensor, "B K"], rngs: Sequence[Generator]) -> Tensor:
        places = torch.tensor([generator.random() for generator in rngs], dtype=torch.float64)
        ends = logits.detach().cpu().double().softmax(-1).cumsum(-1)[:, :-1]
        return (ends < places[:, None]).sum(-1)


class GaussianPolicy(Policy):
    """Policy for actions that are vectors: an independent Gaussian for each component.

    The standard deviations are learned and do not depend on the input.

    d: width of the model.
    numbers: number of components of an action.
    """

    def __init__(self, d: int, numbers: int):
        super().__init__(d, numbers)
        self.log_deviation = nn.Parameter(torch.zeros(numbers))

    def distribution(self, mean: Float[Tensor, "*n K"]) -> Distribution:
        deviation = self.log_deviation.to(mean.dtype).exp().expand_as(mean)
        return Independent(Normal(mean, deviation, validate_args=False), 1, validate_args=False)

    def sample(self, mean: Float[Tensor, "B K"], rngs: Sequence[Generator]) -> Tensor:
        noise = torch.from_numpy(numpy.array([generator.standard_normal(mean.shape[1]) for generator in rngs]))
        normal: Any = self.distribution(mean.detach()).base_dist  # type: ignore[attr-defined]
        return (normal.loc.cpu() + normal.scale.cpu() * noise.reshape(mean.shape).to(mean.dtype)).float()
