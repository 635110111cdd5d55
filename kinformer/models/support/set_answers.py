"""Answers: kinds of numbers to predict for a whole set, with their losses and metrics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.keyword_hints import KeywordHints
from kinformer.core.model import ACCURACY, Metric


class Answer(nn.Module, KeywordHints, ABC):
    """Base class of the kinds of numbers that a `SetRegressor` predicts for a set.

    `name` is the name of the kind in the data. A subclass supplies the prediction from the head's output, the loss, the
    metric and test samples.
    """

    name: ClassVar[str]
    metric: ClassVar[Metric]

    @abstractmethod
    def predict(self, head: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the predicted answers.

        head: output of the head for each set.
        """

    @abstractmethod
    def loss(self, output: Float[Tensor, " B"], right: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the loss of each set.

        output: predicted answers.
        right: correct answers.
        """

    @abstractmethod
    def evaluate(self, output: Float[Tensor, " B"], right: Float[Tensor, " B"]) -> Mapping[str, Float[Tensor, " B"]]:
        """Return the metric and further measures for each set, by name; the metric is first.

        output: predicted answers.
        right: correct answers.
        """

    @abstractmethod
    def sample(self, numbers: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return numbers that are valid as answers of this kind, made from random numbers.

        numbers: random numbers.
        """


class NumberAnswer(Answer):
    """Kind of answer that is any real number; loss and metric are the absolute error.

    The Set Transformer paper does so in its task of maxima.
    """

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
    """Kind of answer that is a count, with a Poisson distribution of rate softplus(head).

    The loss is the negative log-likelihood of the correct count. The metric is the fraction of sets for which the most
    likely count, the rate rounded down, is correct. The Set Transformer paper does so in its task of characters.
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
