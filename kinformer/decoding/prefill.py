"""Prefill: a long text is read once, and every question goes on from there."""

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
    """What a model has read of a text: its state after all tokens but the last, which is `last`, and how many.

    The last one is left over so that the model can go on at once: what it says next follows from reading it.
    """

    state: State
    last: Int[Tensor, "1 1"]
    tokens: int

    def times(self, rows: int) -> State:
        """The state for so many rows that go on from the text, apart from this one."""
        if rows == 1:
            return fork(self.state)
        return select(self.state, torch.zeros(rows, dtype=torch.long))


def make_reader(model: Any) -> Any:
    """The model, or what reads for it beyond its table of positions and keeps what must be read again."""
    return model if model.window is None else SlidingReader(model, model.window)


def prefill(
    model: Any,
    chunks: Iterable[Int[Tensor, "1 _"]],
    length: int,
    on_progress: Callable[[int], None] = lambda tokens: None,
) -> PrefilledText:
    """What a model has read after all of these chunks of one text, however it was cut.

    Give its state to `generate(state=reading.times(rows))`, with prompts that begin with `last`.

    model: a language model.
    chunks: the text, piece after piece; -1 stands nowhere.
    length: how many tokens it has about; a longer one makes caches grow as they are filled.
    on_progress: called after each chunk with the number of tokens that have been read.

    Errors: NoState from a model that keeps none, ValueError where there is no token, and for one that reads no text.
    """
    if model.reads not in ("text", "masked"):  # one that fills in has no state, and says so
        does = "a source and writes a target" if model.reads == "pairs" else f"{model.reads} and no text"
        raise ValueError(f"this {display_name(model)} reads {does}; only a language model goes on")
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
        raise ValueError("there is nothing to read: the text is empty; give at least one token")
    return PrefilledText(state, last, tokens)


def _of_prompt(tokens: Int[Tensor, "1 T"], state: State) -> Context:
    """The context of tokens that an output will stand behind, as `generate` reads those of a prompt."""
    before = Decoding(torch.full_like(tokens, -1), 1)
    return context_of_tokens(tokens, NumberedState(state.now, ())).replace(decoding=before)
