"""DecayingThreshold: a threshold of exits that falls while an output grows."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_at_least, check_in_range, check_option
from kinformer.nn.exits.threshold import Threshold, check_threshold, threshold_of_layer

__all__ = ["DecayingThreshold"]


@dataclass(frozen=True)
class DecayingThreshold:
    """A threshold that starts higher and falls while an output grows: 0.9 threshold + 0.1 exp(-temperature t / N).

    Early tokens matter more, since all later ones read them. t is the index of the token that is chosen, from 0, and N
    the largest number of tokens that the output may have. Tokens of a prompt have t = 0. A text that is read, document
    by document, is an output from its first token on, as targets are in T5X; there N is the length of a target's row.

    threshold: the number that scales it, from 0, or one for each layer but the last.
    length: N where a text is read and no model says how long the rows of its training were.
    temperature: how fast it falls.
    form: "paper", or "code": the authors' code multiplies 0.1 by the threshold too.

    Errors: ValueError for another form and for numbers out of range. Source: Schuster et al., 2022, arXiv:2207.07061,
    equation 5; github.com/google-research/t5x, t5x/contrib/calm/models.py.
    """

    threshold: Threshold
    length: int
    temperature: float = 4.0
    form: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        check_threshold(self.threshold, 0, torch.inf)
        check_in_range("temperature", self.temperature, 0, torch.inf)
        check_at_least("length", self.length, 1)
        check_option("form", self.form, ("paper", "code"))

    @property
    def ends(self) -> tuple[float, float]:
        """The threshold of the first layer at the first token, and where it has fallen to after `length` tokens."""
        first, last = self(torch.tensor([[0, self.length]]))[0].tolist()
        return first, last

    def __call__(
        self, steps: Int[Tensor, "#B T"], max_new_tokens: int | None = None, *, layer: int = 1
    ) -> Float[Tensor, "#B T"]:
        """The threshold after a layer, from 1, for tokens at these steps of an output of at most so many tokens."""
        return self.decay(threshold_of_layer(self.threshold, layer), steps, max_new_tokens)

    def decay(
        self, threshold: float | Float[Tensor, "*#n"], steps: Int[Tensor, "*#n"], max_new_tokens: int | None = None
    ) -> Float[Tensor, "*n"]:
        """The same for any threshold in place of its own."""
        peak = 1.0 if self.form == "paper" else threshold
        fall = torch.exp(steps.clamp_min(0) * (-self.temperature / (max_new_tokens or self.length)))
        return (0.9 * threshold + 0.1 * peak * fall).clamp(0, 1)
