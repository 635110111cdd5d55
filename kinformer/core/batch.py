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
    from all tokens before it. A masked language model hides exactly the scored tokens from itself and predicts them. A
    sequence-to-sequence model learns and is measured on the scored tokens of its target.

    tokens: the rows; -1 is padding, at the ends of a row only.
    scored: True at the tokens that the loss and the metrics count; None for all, as in a plain tensor. Padding is never
        scored.
    documents: the number of each token's document, in rows without padding at their start. A document attends only to
        itself, its first token is not predicted, and tables of absolute positions count from its start. None: one
        document per row.
    """

    tokens: Int[Tensor, "B T"]
    scored: Bool[Tensor, "B T"] | None = None
    documents: Int[Tensor, "B T"] | None = None

    @classmethod
    def from_tokens(cls, batch: "Tensor | TokenBatch") -> "TokenBatch":
        """Return the batch; wrap it if it is a plain tensor of tokens."""
        if not isinstance(batch, TokenBatch):
            return cls(check_token_rows(batch))
        if batch.scored is not None and batch.scored.dtype != torch.bool:
            raise TypeError(f"TokenBatch.scored is {batch.scored.dtype}, expected bool; call scored.bool()")
        return batch

    @property
    def targets(self) -> Int[Tensor, "B T"]:
        """The tokens, with -1 in place of the tokens that are not scored."""
        return self.tokens if self.scored is None else torch.where(self.scored, self.tokens, -1)

    def limit_context(self, ctx: Context, columns: int | None = None, state: object = None) -> Context:
        """Return `ctx` with attention limited to each token's own document, if documents share rows.

        ctx: the context of the rows, or of their first `columns` tokens.
        columns: the number of token places that the context covers; None for all.
        state: the state that the rows continue, or None.

        Errors: ValueError if several documents share a row that continues from a state.
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
        """Return the same rows with their tokens at the left end and all padding after them."""
        order = (self.tokens < 0).to(torch.uint8).argsort(dim=1, stable=True)
        return TokenBatch(*(x if x is None else x.take_along_dim(order, 1) for x in self))  # type: ignore[arg-type]


class SeriesWindows(NamedTuple):
    """Windows of a series: consecutive rows of numbers, with the time of each row.

    values: the numbers; each of the C channels is standardised by its mean and deviation in the training data.
    calendar: the minute, the hour, and the day of the week, the month and the year, each scaled to -1/2 .. 1/2; F = 0
        if dates are unknown.
    """

    values: Float[Tensor, "B T C"]
    calendar: Float[Tensor, "B T F"]


class EpisodeSteps(NamedTuple):
    """Consecutive steps of episodes, in the units of their environment.

    returns: the return to go: the sum of the rewards from this step on.
    states: the observations.
    actions: the actions: numbers of discrete actions [B T], or A real numbers each [B T A].
    times: the number of earlier steps of the episode; -1 is padding, at the ends of a row only.
    """

    returns: Float[Tensor, "B T"]
    states: Float[Tensor, "B T S"]
    actions: Int[Tensor, "B T"] | Float[Tensor, "B T A"]
    times: Int[Tensor, "B T"]
