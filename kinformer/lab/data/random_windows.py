"""Random windows: batches for models that carry no state from one batch to the next."""

from dataclasses import dataclass

import numpy
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.core.checks import check_at_least
from kinformer.lab.data.support.split_tokens import SplitTokens


@dataclass(frozen=True, eq=False)
class RandomWindows:
    """Batches of windows of `length` + `after` tokens at random positions of a text.

    The positions follow from seed and step. Choose it for a model that starts anew with every batch. Choose `Lanes` for
    a model that carries its state from batch to batch.

    text: tokens [N], or a `SplitTokens` with documents that must not see each other.
    batch: windows per batch.
    length: tokens in a window.
    seed: seed of the random positions.
    after: further tokens after a window: 1 for a model that predicts the next token, 0 for a masked model.
    packed: True if a window may hold several documents; a TokenBatch then names the document of each token. With False
        a window holds one document, or a part of it, and is padded with -1.

    Errors: ValueError if the text is shorter than one window, unless its documents are padded.
    """

    text: Shaped[Tensor, " N"] | SplitTokens
    batch: int
    length: int
    seed: int = 0
    after: int = 1
    packed: bool = True

    def __post_init__(self) -> None:
        check_at_least("batch", self.batch, 1), check_at_least("length", self.length, 1)
        check_at_least("seed", self.seed, 0), check_at_least("after", self.after, 0)
        part = SplitTokens.from_tokens(self.text)
        if len(part.tokens) < self.length + self.after and (part.begins is None or self.packed):
            raise ValueError(
                f"the training text is too short: got {len(part.tokens):,} {part.unit}, but a window of length "
                f"{self.length:,} needs {self.length + self.after:,}; give more text or a smaller length"
            )

    def at(self, step: int) -> Int[Tensor, "B T"] | TokenBatch:
        """Return the batch of a step: int64 tokens, with their documents if a window has several."""
        part, width = SplitTokens.from_tokens(self.text), self.length + self.after
        draw = numpy.random.default_rng((self.seed, step))
        if part.begins is not None and not self.packed:
            return self._document_windows(part, torch.from_numpy(draw.integers(len(part.tokens), size=self.batch)))
        starts = draw.integers(len(part.tokens) - width + 1, size=(self.batch, 1))
        places = torch.from_numpy(starts) + torch.arange(width)
        tokens = part.tokens[places].long()
        if part.begins is None:
            return tokens
        documents = torch.searchsorted(part.begins, places, right=True)
        return tokens if bool((documents[:, 0] == documents[:, -1]).all()) else TokenBatch(tokens, None, documents)

    def _document_windows(self, part: SplitTokens, positions: Int[Tensor, " B"]) -> Int[Tensor, "B T"]:
        """Return the documents of some tokens, or a window within each document if it is too long."""
        number = torch.searchsorted(part.document_starts, positions, right=True) - 1
        first, end, width = part.document_starts[number], part.end(number), self.length + self.after
        first = torch.maximum(first, torch.minimum(positions, end - width))
        places = first[:, None] + torch.arange(min(width, int((end - first).max())))
        tokens = part.tokens[places.clamp_max(len(part.tokens) - 1)].long()
        return torch.where(places < end[:, None], tokens, -1)
