"""GenerationState: rows that are being written, and one step of a model over them."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.autocast import at_least_float32
from kinformer.core.layer import Context, Decoding, State
from kinformer.core.state import select
from kinformer.core.token_positions import NumberedState, context_of_tokens


class GenerationState(NamedTuple):
    """Rows that are being written: their tokens, how many of the last ones the state has not read, and the state.

    The first `prompt` columns are prompts, and at most `max_new_tokens` tokens are written behind them. `inputs` goes
    to the next call of the model: what a state has to be told once, and a call without one every time. `full` says that
    a fresh state reads rows without padding: their tokens then stand where they lie.
    """

    rows: Int[Tensor, "B T"]
    unread: int
    state: State | None
    inputs: dict[str, Any]
    prompt: int
    max_new_tokens: int
    full: bool = False


def next_logits(model: Any, text: GenerationState) -> tuple[Float[Tensor, "B V"], GenerationState]:
    """The logits after the last token of each row, and the text with everything read.

    ValueError where they are no numbers, of which a choice would still make a token.
    """
    rows, first = text.rows, 0 if text.state is None else text.rows.shape[1] - text.unread
    out = model.logits(rows[:, first:], text.state, _context(text, first), last=True, **text.inputs)
    logits = at_least_float32(out.y[:, -1])
    if bool((logits.amax(-1).isnan() & (rows[:, -1] >= 0)).any()):  # a row that has ended is padding
        raise ValueError("what the model says of the next token is no number; its weights are spoiled, or too large")
    return logits, text._replace(state=out.state, unread=0, inputs=text.inputs if out.state is None else {})


def _context(text: GenerationState, first: int) -> Context | None:
    """Where the columns from the first on stand and which tokens are chosen there; None for a state without a count."""
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
    """The text with a token behind each row."""
    return text._replace(rows=torch.cat([text.rows, new[:, None]], 1), unread=text.unread + 1)


def select_rows(text: GenerationState, rows: Int[Tensor, " R"]) -> GenerationState:
    """The given rows of a text, which may repeat."""
    state = None if text.state is None else select(text.state, rows)
    inputs = {name: value[rows] for name, value in text.inputs.items()}
    return text._replace(rows=text.rows[rows], state=state, inputs=inputs)


def pad_rows(rows: Int[Tensor, "B T"], width: int) -> Int[Tensor, "B N"]:
    """Rows with -1 behind them, up to a width."""
    return nn.functional.pad(rows, (0, width - rows.shape[1]), value=-1)
