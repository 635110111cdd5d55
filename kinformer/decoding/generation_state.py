"""GenerationState: rows during generation, and one step of a model over them."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32
from kinformer.core.layer import Context, Decoding, State
from kinformer.core.state import select
from kinformer.core.token_positions import NumberedState, context_of_tokens
from kinformer.decoding.step_threads import step_threads


class GenerationState(NamedTuple):
    """Rows of tokens during generation, with the model's decoding state.

    rows: tokens of the prompts and the new tokens.
    unread: number of tokens at the end of each row that the model has not read.
    state: decoding state of the model; None to read the whole rows at each step.
    inputs: keyword arguments of the model's next call; without a state, of every call.
    prompt: length of the prompts, padding included.
    max_new_tokens: largest number of new tokens.
    full: True if rows have no padding and the state was empty before them. The position of a token is then its index.
    """

    rows: Int[Tensor, "B T"]
    unread: int
    state: State | None
    inputs: dict[str, Any]
    prompt: int
    max_new_tokens: int
    full: bool = False


def next_logits(model: Any, text: GenerationState) -> tuple[Float[Tensor, "B V"], GenerationState]:
    """Return the logits after the last token of each row, and `text` after the model has read it all.

    model: model with `logits`.
    text: rows and state.

    Errors: ValueError if the logits are NaN, because sampling would still return a token.
    """
    logits, text = logits_of_last(model, text, 1)
    return logits[:, 0], text


def logits_of_last(model: Any, text: GenerationState, count: int) -> tuple[Float[Tensor, "B N V"], GenerationState]:
    """Return the logits after each of the last `count` tokens, and `text` after the model has read it all.

    model: model with `logits`.
    text: rows and state.
    count: number of tokens, at most the number that the model has not read.

    Errors: ValueError if the logits are NaN, because sampling would still return a token.
    """
    rows, first = text.rows, 0 if text.state is None else text.rows.shape[1] - text.unread
    # a step has many short operations, and each is faster without counts of writes
    with torch.inference_mode(), step_threads(len(rows), rows.shape[1] - first):
        tokens = rows[:, first:] if first else rows.contiguous()  # reserved memory may lie behind each row
        out = model.logits(tokens, text.state, _context(text, first), last=count == 1, **text.inputs)
        logits = at_least_float32(out.y[:, -count:])
        is_damaged = bool((logits.amax(-1).isnan() & (rows[:, -count:] >= 0)).any())  # padding: rows that have ended
    if is_damaged:
        raise ValueError("the logits of the next token are NaN: the weights are damaged or too large")
    return logits, text._replace(state=out.state, unread=0, inputs=text.inputs if out.state is None else {})


def _context(text: GenerationState, first: int) -> Context | None:
    """Return the context of the columns from `first` on; None for a state without a position counter."""
    rows, columns = text.rows, torch.arange(first, text.rows.shape[1], device=text.rows.device)
    decoding = Decoding(columns[None] - (text.prompt - 1), text.max_new_tokens)
    if text.full:
        return Context(columns.expand(len(rows), -1), run=True, full=True, decoding=decoding)
    now = getattr(text.state, "now", None)
    if text.state is not None and now is None:
        return None
    return context_of_tokens(rows[:, first:], None if now is None else NumberedState(now, ())).replace(
        decoding=decoding
    )


def append_tokens(text: GenerationState, new: Int[Tensor, " B"]) -> GenerationState:
    """Return `text` with one new token at the end of each row.

    text: rows and state.
    new: new token of each row.
    """
    return text._replace(rows=torch.cat([text.rows, new[:, None]], 1), unread=text.unread + 1)


def select_rows(text: GenerationState, rows: Int[Tensor, " R"]) -> GenerationState:
    """Return the rows of `text` with these indices, with their states; an index may repeat.

    text: rows and state.
    rows: indices of the rows.
    """
    state = None if text.state is None else select(text.state, rows)
    inputs = {name: value[rows] for name, value in text.inputs.items()}
    return text._replace(rows=text.rows[rows], state=state, inputs=inputs)


def pad_rows(rows: Int[Tensor, "B T"], width: int) -> Int[Tensor, "B N"]:
    """Return rows padded at the end with -1 to a given width.

    rows: tokens.
    width: width of the result.
    """
    return nn.functional.pad(rows, (0, width - rows.shape[1]), value=-1)
