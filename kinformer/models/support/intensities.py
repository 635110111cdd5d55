"""Intensities: base class of the part that reads and predicts the intensities of a picture."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.keyword_hints import KeywordHints


class Intensities(nn.Module, KeywordHints, ABC):
    """Base class of a part that embeds intensities 0 .. 255 and turns vectors into their distributions.

    `n` is the number of intensities in a step of the generation: one, or all channels of a pixel. `draws` is the number
    of uniform random numbers in [0, 1) that sampling one step needs.
    """

    n: int
    draws: int

    @abstractmethod
    def embed(self, values: Int[Tensor, "B T n"], first: int = 0) -> Float[Tensor, "B T D"]:
        """Return a vector for each step.

        values: intensities of each step.
        first: number of the first step, which determines its channel.
        """

    @abstractmethod
    def nll(self, y: Float[Tensor, "B T D"], values: Int[Tensor, "B T n"]) -> Float[Tensor, "B T"]:
        """Return -log p(values) of each step in nats, in float32 or better.

        y: output of the body.
        values: intensities of each step.
        """

    @abstractmethod
    def draw(
        self, y: Float[Tensor, "B D"], uniform: Float[Tensor, "B draws"], temperature: float
    ) -> Int[Tensor, "B n"]:
        """Return the intensities of one step, sampled by means of the given random numbers.

        y: output of the body.
        uniform: uniform random numbers.
        temperature: 1 samples from the distribution; 0 takes its most likely value, or its middle, as the subclass
            defines.
        """
