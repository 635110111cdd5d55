"""Batches: tokens with marks of answers and documents, windows of series, and steps of episodes."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.layer import Context
from kinformer.core.patterns.document import Document
from kinformer.core.vocabulary import check_token_rows


class TokenBatch(NamedTuple):
    """Rows of text in which only some tokens are answers, or several documents share a row.

    Choose it instead of a plain tensor of tokens in these cases. A language model predicts only the scored tokens, each
    from all tokens before it. A model that fills in hides exactly the scored tokens. In the target of a
    sequence-to-sequence model, the scored tokens are judged.

    tokens: the rows; -1 is padding, at the ends of a row only.
    scored: True at the tokens that are learned and judged; None for all, as in a plain tensor. Padding is never scored.
    documents: the document of each token, in rows that start in their first column. A document reads only itself, its
        first token is not predicted, and tables of absolute positions count from its start. None: one document per row.
    """

    tokens: Int[Tensor, "B T"]
    scored: Bool[Tensor, "B T"] | None = None
    documents: Int[Tensor, "B T"] | None = None

    @classmethod
    def from_tokens(cls, batch: "Tensor | TokenBatch") -> "TokenBatch":
        """Return the batch; wrap it if it is a plain tensor of tokens."""
        return batch if isinstance(batch, TokenBatch) else cls(check_token_rows(batch))

    @property
    def targets(self) -> Int[Tensor, "B T"]:
        """The scored tokens; -1 elsewhere."""
        return self.tokens if self.scored is None else torch.where(self.scored, self.tokens, -1)

    def limit_context(self, ctx: Context, columns: int | None = None, state: object = None) -> Context:
        """Return the context of the first columns, in which documents read only themselves.

        Errors: ValueError if documents continue from a state.
        """
        if self.documents is None:
            return ctx
        if state is not None:
            raise ValueError(
                "documents that share a row cannot continue from a state; put each document in a row of its own, or "
                "call the model without a state"
            )
        return ctx.replace(only=Document(self.documents[:, :columns]))

    def to_the_left(self) -> "TokenBatch":
        """Return the same rows with their tokens in the first columns and padding after them."""
        order = (self.tokens < 0).to(torch.uint8).argsort(dim=1, stable=True)
        return TokenBatch(*(x if x is None else x.take_along_dim(order, 1) for x in self))  # type: ignore[arg-type]


class SeriesWindows(NamedTuple):
    """Windows of a series: consecutive rows of numbers, with the time of each row.

    values: the numbers, each column standardised by its mean and deviation in the training data.
    calendar: the minute, the hour, and the day of the week, the month and the year, from -1/2 to 1/2; no columns if
        dates are unknown.
    """

    values: Float[Tensor, "B T C"]
    calendar: Float[Tensor, "B T F"]


class EpisodeSteps(NamedTuple):
    """Consecutive steps of episodes, in the units of their environment.

    returns: the return to go: the sum of the rewards from this step on.
    states: the observations.
    actions: the actions: kinds [B T], or numbers [B T A].
    times: the number of earlier steps of the episode; -1 is padding, at the ends of a row only.
    """

    returns: Float[Tensor, "B T"]
    states: Float[Tensor, "B T S"]
    actions: Int[Tensor, "B T"] | Float[Tensor, "B T A"]
    times: Int[Tensor, "B T"]
