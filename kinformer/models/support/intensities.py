"""Intensities: how a picture's intensities go into a model and how they come out of it."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn


class Intensities(nn.Module, ABC):
    """Intensities 0 .. 255 as vectors, and vectors as a distribution of intensities.

    `n` is how many intensities a step of the generation has: one, or all channels of a pixel. `draws` is how many even
    random numbers from 0 to 1 it takes to draw them.
    """

    n: int
    draws: int

    @abstractmethod
    def embed(self, values: Int[Tensor, "B T n"], first: int = 0) -> Float[Tensor, "B T D"]:
        """A vector for each step; `first` is the number of the first one, which tells of what channel it is."""

    @abstractmethod
    def nll(self, y: Float[Tensor, "B T D"], values: Int[Tensor, "B T n"]) -> Float[Tensor, "B T"]:
        """-log p(values) of each step in nats, in float32 or better."""

    @abstractmethod
    def draw(
        self, y: Float[Tensor, "B D"], uniform: Float[Tensor, "B draws"], temperature: float
    ) -> Int[Tensor, "B n"]:
        """Intensities of a step, drawn by these random numbers; at temperature 0 the likeliest or the middle."""
