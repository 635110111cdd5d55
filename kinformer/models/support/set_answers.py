"""Answers: what a model says of a whole set, and what it is judged by."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.model import ACCURACY, Metric


class Answer(nn.Module, ABC):
    """One number of a set, made of what a head says. `name` is what data calls answers of this kind."""

    name: ClassVar[str]
    metric: ClassVar[Metric]

    @abstractmethod
    def predict(self, head: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The answers."""

    @abstractmethod
    def loss(self, output: Float[Tensor, " B"], right: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """What is learned from, a set each."""

    @abstractmethod
    def evaluate(self, output: Float[Tensor, " B"], right: Float[Tensor, " B"]) -> Mapping[str, Float[Tensor, " B"]]:
        """What is measured of each set, the metric first."""

    @abstractmethod
    def sample(self, numbers: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Right answers of some kind, made of random numbers."""


class NumberAnswer(Answer):
    """Any number; learned and judged by how far off it is, as the paper does for maxima."""

    name = "number"
    metric = Metric("absolute error", "", per="row")

    def predict(self, head: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return head

    def loss(self, output: Float[Tensor, " B"], right: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return (output - right).abs()

    def evaluate(self, output: Float[Tensor, " B"], right: Float[Tensor, " B"]) -> Mapping[str, Float[Tensor, " B"]]:
        return {self.metric.name: self.loss(output, right)}

    def sample(self, numbers: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return numbers


class CountAnswer(Answer):
    """How many: the rate of a Poisson distribution, softplus of what the head says; learned by -log of its probability.

    Judged by how often the likeliest number, the rate rounded down, is right, as the paper does for characters.
    """

    name = "count"
    metric = ACCURACY._replace(per="row")

    def predict(self, head: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return F.softplus(head)

    def loss(self, output: Float[Tensor, " B"], right: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        log = output.clamp_min(torch.finfo(output.dtype).tiny).log()
        return output - right * log + torch.lgamma(right + 1)

    def evaluate(self, output: Float[Tensor, " B"], right: Float[Tensor, " B"]) -> Mapping[str, Float[Tensor, " B"]]:
        return {self.metric.name: (output.floor() == right).to(output.dtype), "nats": self.loss(output, right)}

    def sample(self, numbers: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return numbers.abs().round()
