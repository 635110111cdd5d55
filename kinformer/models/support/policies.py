"""Policies: what a model says of what to do, and what is drawn of it."""

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

START = 0.01  # of the weights of a head beside those of a linear layer: at the start all actions are about as likely


class Policy(nn.Module, ABC):
    """A linear head whose numbers are a distribution of actions."""

    def __init__(self, d: int, numbers: int):
        super().__init__()
        self.head = nn.Linear(d, numbers)
        with torch.no_grad():
            self.head.weight.mul_(START)
            self.head.bias.zero_()

    def forward(self, y: Float[Tensor, "*n D"]) -> Float[Tensor, "*n K"]:
        """The numbers of the distribution, in float32 or better, under autocast too."""
        return linear_float32(self.head, y)

    @abstractmethod
    def distribution(self, parameters: Float[Tensor, "*n K"]) -> Distribution:
        """The distribution that they say."""

    @abstractmethod
    def sample(self, parameters: Float[Tensor, "B K"], rngs: Sequence[Generator]) -> Tensor:
        """An action of each row, by a generator of its own: batch mates and devices change nothing."""


class CategoricalPolicy(Policy):
    """One of several kinds of actions: a softmax."""

    def distribution(self, logits: Float[Tensor, "*n K"]) -> Distribution:
        return Categorical(logits=logits, validate_args=False)

    def sample(self, logits: Float[Tensor, "B K"], rngs: Sequence[Generator]) -> Tensor:
        places = torch.tensor([generator.random() for generator in rngs], dtype=torch.float64)
        ends = logits.detach().cpu().double().softmax(-1).cumsum(-1)[:, :-1]
        return (ends < places[:, None]).sum(-1)


class GaussianPolicy(Policy):
    """Numbers, each from a Gaussian of its own, whose deviations are learned and alike for all that is seen."""

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
