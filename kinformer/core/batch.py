"""Batches: tokens with what is known of each, where they alone do not say it; windows, steps of episodes."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.patterns.document import Document
from kinformer.core.vocabulary import check_token_rows


class TokenBatch(NamedTuple):
    """What a model that reads text takes in place of bare tokens, where some of them alone are answers.

    A language model predicts the scored tokens alone, from all before them; one that fills in hides exactly these. In
    place of a target it marks what a sequence-to-sequence model is judged by.

    tokens: the rows; -1 is padding, at the ends of a row only.
    scored: which tokens are learned and judged; None: all, as of bare tokens. Padding never is.
    documents: which document each token is of, in rows that begin in their first column. They read only themselves, and
        the first token of each is predicted by none. Tables of absolute positions count from its begin. None: one.
    """

    tokens: Int[Tensor, "B T"]
    scored: Bool[Tensor, "B T"] | None = None
    documents: Int[Tensor, "B T"] | None = None

    @classmethod
    def from_tokens(cls, batch: "Tensor | TokenBatch") -> "TokenBatch":
        """A batch, bare tokens or not."""
        return batch if isinstance(batch, TokenBatch) else cls(check_token_rows(batch))

    @property
    def targets(self) -> Int[Tensor, "B T"]:
        """The scored tokens; -1 elsewhere."""
        return self.tokens if self.scored is None else torch.where(self.scored, self.tokens, -1)

    def limit_context(self, ctx: Context, columns: int | None = None, state: object = None) -> Context:
        """The context of the first columns of its rows, in which documents read only themselves.

        Errors: ValueError for documents that go on from a state.
        """
        if self.documents is None:
            return ctx
        if state is not None:
            raise ValueError("documents that share a row are read without a state; give each a row of its own, or none")
        return ctx.replace(only=Document(self.documents[:, :columns]))

    def to_the_left(self) -> "TokenBatch":
        """The same rows, their tokens in the first columns and padding behind."""
        order = (self.tokens < 0).to(torch.uint8).argsort(dim=1, stable=True)
        return TokenBatch(*(x if x is None else x.take_along_dim(order, 1) for x in self))  # type: ignore[arg-type]


class SeriesWindows(NamedTuple):
    """Windows of a series: rows of numbers that follow one another, and when each of them was.

    values: the numbers, each column by its mean and deviation in what is learned from.
    calendar: the minute, hour, day of the week, of the month and of the year, from -1/2 to 1/2; no columns where dates
        are not known.
    """

    values: Float[Tensor, "B T C"]
    calendar: Float[Tensor, "B T F"]


class EpisodeSteps(NamedTuple):
    """Steps of episodes that follow one another, in the units of their environment.

    returns: to go: what rewards add up to from this step's on.
    states: what was observed.
    actions: what was done then: kinds [B T], or numbers [B T A].
    times: how many steps of the episode were before; -1 is padding, at the ends of a row only.
    """

    returns: Float[Tensor, "B T"]
    states: Float[Tensor, "B T S"]
    actions: Int[Tensor, "B T"] | Float[Tensor, "B T A"]
    times: Int[Tensor, "B T"]
