"""Prefill: read a long text once, and continue from it several times."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.eval_mode import evaluating
from kinformer.core.layer import Context, Decoding, State
from kinformer.core.model import display_name
from kinformer.core.state import fork, select
from kinformer.core.token_positions import NumberedState, context_of_tokens
from kinformer.models.support.sliding_reader import SlidingReader, must_slide


class PrefilledText(NamedTuple):
    """Long text that `prefill` has read with a model: decoding state, last token and length.

    The model has not read the last token, so that its next call can begin with it and predict the token after it.

    state: decoding state after all tokens except the last.
    last: last token.
    tokens: number of tokens.
    """

    state: State
    last: Int[Tensor, "1 1"]
    tokens: int

    def times(self, rows: int) -> State:
        """Return a copy of the decoding state for several rows, which each continue the text.

        rows: number of rows.
        """
        if rows == 1:
            return fork(self.state)
        return select(self.state, torch.zeros(rows, dtype=torch.long))


def make_reader(model: Any) -> Any:
    """Return the model, or a `SlidingReader` around a model with a limited number of learned positions.

    The `SlidingReader` lets the model read beyond its last position.

    model: a language model.
    """
    return model if model.window is None else SlidingReader(model, model.window)


def prefill(
    model: Any,
    chunks: Iterable[Int[Tensor, "1 _"]],
    length: int,
    on_progress: Callable[[int], None] = lambda tokens: None,
) -> PrefilledText:
    """Read a text in chunks and return the decoding state after it; the cuts do not change the result.

    Continue the result `reading` by `generate(state=reading.times(rows))`, with prompts that begin with `reading.last`.

    model: a language model.
    chunks: consecutive chunks of the text, without padding.
    length: expected number of tokens, for the size of the caches; they grow if the text is longer.
    on_progress: called after each chunk with the number of tokens read so far.

    Errors: NoState from a model without a state; ValueError for an empty text, and for a model that reads no text.
    """
    if model.reads not in ("text", "masked"):  # a masked model raises NoState itself
        does = "a source and writes a target" if model.reads == "pairs" else f"{model.reads} and no text"
        raise ValueError(f"this {display_name(model)} reads {does}; only a language model can continue a text")
    device, writer = next(model.parameters()).device, make_reader(model)
    last, tokens = torch.empty(1, 0, dtype=torch.long, device=device), 0
    with evaluating(model):
        state = writer.start(1, length)
        must_slide(model, length)
        for chunk in chunks:
            tokens += chunk.shape[1]
            unread = torch.cat([last, chunk.to(device)], 1)
            if unread.shape[1] > 1:
                state = writer.logits(unread[:, :-1], state, _of_prompt(unread[:, :-1], state), last=True).state
            last = unread[:, -1:]
            on_progress(tokens)
    if not tokens:
        raise ValueError("the text to read is empty; give at least one token")
    return PrefilledText(state, last, tokens)


def _of_prompt(tokens: Int[Tensor, "1 T"], state: State) -> Context:
    """Return the context of prompt tokens, as `generate` gives it."""
    before = Decoding(torch.full_like(tokens, -1), 1)
    return context_of_tokens(tokens, NumberedState(state.now, ())).replace(decoding=before)
