"""DecayingThreshold: an exit threshold that falls while an output grows."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.core.checks import check_at_least, check_in_range, check_option
from kinformer.core.keyword_hints import KeywordHints
from kinformer.nn.exits.threshold import Threshold, check_threshold, threshold_of_layer

__all__ = ["DecayingThreshold"]


@dataclass(frozen=True)
class DecayingThreshold(KeywordHints):
    """A threshold for early exits that starts higher and falls while an output grows.

        0.9 threshold + 0.1 exp(-temperature t / N)

    Choose it for generation: early tokens matter more, since all later tokens read them. Here t is the index of the
    chosen token, from 0, and N the largest number of tokens of the output. Tokens of a prompt have t = 0. If a
    text is evaluated instead of generated, t counts from the start of each document, and N is the length of a row, as
    in T5X.

    threshold: the threshold in the equation, at least 0: one number, or one for each layer except the last.
    length: N if the caller does not give it, as for evaluated text.
    temperature: speed of the decay, at least 0.
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
        """The first layer's exit threshold at the first token and after `length` tokens."""
        first, last = self(torch.tensor([[0, self.length]]))[0].tolist()
        return first, last

    def __call__(
        self, steps: Int[Tensor, "#B T"], max_new_tokens: int | None = None, *, layer: int = 1
    ) -> Float[Tensor, "#B T"]:
        """Return the threshold after a layer for each step.

        steps: index of each token in its output, [B T].
        max_new_tokens: N, the largest number of tokens of the output, above 0; default `length`.
        layer: number of the layer, from 1.
        """
        return self.decay(threshold_of_layer(self.threshold, layer), steps, max_new_tokens)

    def decay(
        self, threshold: float | Float[Tensor, "*#n"], steps: Int[Tensor, "*#n"], max_new_tokens: int | None = None
    ) -> Float[Tensor, "*n"]:
        """Return the decayed value of any given threshold instead of the stored one.

        threshold: threshold to decay.
        steps: index of each token in its output.
        max_new_tokens: N, the largest number of tokens of the output, above 0; default `length`.
        """
        peak = 1.0 if self.form == "paper" else threshold
        length = self.length if max_new_tokens is None else max_new_tokens
        fall = torch.exp(steps.clamp_min(0) * (-self.temperature / length))
        return (0.9 * threshold + 0.1 * peak * fall).clamp(0, 1)
