"""Pooling: one vector of a row, from the vectors of its tokens."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import precise


class Pooling(nn.Module, ABC):
    """How a row becomes one vector. `own` is how many tokens it adds to a row; `vectors` stand in it side by side."""

    own: int = 0
    vectors: int = 1

    def rows(self, tokens: Int[Tensor, "B T"], mark: int) -> Int[Tensor, "B _"]:
        """The rows that the model reads in place of these; `mark` is an id that no token has."""
        return tokens

    @abstractmethod
    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B kD"]:
        """The vectors of such rows, of which the real ones count, as one."""


class Sum(Pooling):
    """The sum of a row's vectors. Choose it to count: of twice the row it is twice as much."""

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        return _summed(y, real)


class Max(Pooling):
    """The largest of each number over a row's vectors, 0 of an empty row. Choose it where one token decides."""

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        if not y.shape[1]:
            return y.sum(1)
        most = y.masked_fill(~real[..., None], -torch.inf).amax(1)
        return most.where(real.any(1, keepdim=True), 0.0)


class Mean(Pooling):
    """The mean of a row's vectors. Choose it to train from nothing: every token has its share from the first step."""

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        return _summed(y, real) / real.sum(1, keepdim=True).clamp_min(1)


class First(Pooling):
    """A token of the model's own before the row ([CLS]), its vector through a matrix and tanh, as BERT pools.

    Errors: ValueError for rows without that token. Source: Devlin et al., 2018, arXiv:1810.04805, section 3.
    """

    own = 1

    def __init__(self, d: int):
        super().__init__()
        self.dense = nn.Linear(d, d)

    def rows(self, tokens: Int[Tensor, "B T"], mark: int) -> Int[Tensor, "B _"]:
        before = _padding_before(tokens < 0)
        longer = torch.cat([torch.full_like(tokens[:, :1], -1), tokens], 1)
        return longer.scatter(1, before, mark)  # after padding that stands before the row

    def forward(self, y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        if not y.shape[1]:
            raise ValueError("rows of no tokens came; First reads the token that its rows() puts before them")
        at = _padding_before(~real).clamp_max(y.shape[1] - 1)
        return self.dense(y.take_along_dim(at[..., None], 1)[:, 0]).tanh()


def _summed(y: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
    """Added up in float32 or better; it stays so under autocast, where what comes after is as wide."""
    total = precise(y).where(real[..., None], 0.0).sum(1)
    return total if torch.is_autocast_enabled(y.device.type) else total.to(y.dtype)


def _padding_before(padding: Bool[Tensor, "B T"]) -> Int[Tensor, "B 1"]:
    return padding.long().cumprod(1).sum(1, keepdim=True)
