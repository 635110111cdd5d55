"""Random windows: batches for models without a state."""

from dataclasses import dataclass

import numpy
import torch
from jaxtyping import Int, UInt8
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Windows:
    """Batches of windows of `length` tokens, and `after` more, drawn anywhere in a text, by seed and step alone.

    Choose it for a model that starts anew with every batch; `Lanes` for one that carries a state. What predicts the
    next token wants one after the window, what fills in wants none. Raises ValueError where the text is shorter than
    one window.
    """

    text: UInt8[Tensor, "N"]
    batch: int
    length: int
    seed: int = 0
    after: int = 1

    def __post_init__(self) -> None:
        if len(self.text) < self.length + self.after:
            raise ValueError(
                f"the text to learn from is too short: {len(self.text):,} bytes are there, and a window of length "
                f"{self.length:,} needs {self.length + self.after:,}; give more text or a smaller length"
            )

    def at(self, step: int) -> Int[Tensor, "B T"]:
        """The batch of a step, int64 tokens."""
        draw = numpy.random.default_rng((self.seed, step))
        starts = draw.integers(len(self.text) - self.length - self.after + 1, size=(self.batch, 1))
        return self.text[torch.from_numpy(starts) + torch.arange(self.length + self.after)].long()
