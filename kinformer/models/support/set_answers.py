"""Answers: kinds of predictions about a whole set, with their losses and metrics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.model import ACCURACY, Metric


class Answer(nn.Module, ABC):
    """Base class of the number that is predicted for a set.

    `name` is the name that data uses for this kind of answer.
    """

    name: ClassVar[str]
    metric: ClassVar[Metric]

    @abstractmethod
    def predict(self, head: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the answers.

        head: output of the head for each set.
        """

    @abstractmethod
    def loss(self, output: Float[Tensor, " B"], right: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the loss of each set.

        output: predicted answers.
        right: right answers.
        """

    @abstractmethod
    def evaluate(self, output: Float[Tensor, " B"], right: Float[Tensor, " B"]) -> Mapping[str, Float[Tensor, " B"]]:
        """Return the measures of each set, the metric first.

        output: predicted answers.
        right: right answers.
        """

    @abstractmethod
    def sample(self, numbers: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return valid right answers, made from random numbers.

        numbers: random numbers.
        """


class NumberAnswer(Answer):
    """Any real number; loss and metric are the absolute error, as in the paper's task of maxima."""

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
    """Count with a Poisson distribution of rate softplus(head); the loss is its negative log-likelihood.

    The metric is the share of sets for which the most likely count, the rate rounded down, is right, as in the paper's
    task of characters.
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
