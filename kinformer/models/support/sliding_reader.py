"""Generation beyond a table of learned positions: when it is full, its last half is read again."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.core.collected_outputs import concatenate_outs
from kinformer.core.layer import Context, Device, Dtype, Out, State
from kinformer.core.state import reset
from kinformer.core.token_positions import context_of_tokens
from kinformer.core.warn import warn


class SlidingState(NamedTuple):
    """Decoding state of a `SlidingReader`.

    read: last tokens that the model has read, at most `window`.
    source: tokens of the source, or () if there is none.
    model_state: decoding state of the model.
    """

    read: Int[Tensor, "B W"]
    source: Int[Tensor, "B S"] | tuple[()]
    model_state: Any

    @property
    def now(self) -> Int[Tensor, " B"]:
        """Position that the model gives to the next token of each row."""
        return self.model_state.now


class SlidingReader:
    """Wrapper of a model that lets it generate beyond its table of learned positions.

    When `window` tokens fill the table, the model reads their last half again from position 0. The wrapper has `start`
    and `logits` as the model does, so it can be used in its place. Each row is read again when its own tokens fill the
    table, so padding and other rows do not matter. The result for a token depends only on the tokens before it, not on
    how the row was cut into calls.

    model: model that generates.
    window: number of positions; the half that is kept is rounded down.
    """

    def __init__(self, model: Any, window: int):
        self.model, self.window = model, window

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> SlidingState:
        model_state = self.model.start(batch, min(length, self.window), dtype=dtype, device=device)
        return self.continue_from(model_state)

    def continue_from(self, model_state: State) -> SlidingState:
        """Return the decoding state for a model that has read tokens without this wrapper.

        Those tokens are unknown here, so they are not read again.

        model_state: decoding state of the model after those tokens.
        """
        width = min(self.window, int(model_state.now.max()) if len(model_state.now) else 0)
        return SlidingState(
            torch.full((len(model_state.now), width), -1, device=model_state.now.device), (), model_state
        )

    def logits(
        self,
        tokens: Int[Tensor, "B T"],
        state: SlidingState | None = None,
        ctx: Context | None = None,
        *,
        last: bool = False,
        **inputs: Any,
    ) -> Out:
        """Return the model's logits for the tokens, or with `last` only for the last one.

        If a row is read again, the output also has the tokens that are read again. Their positions then count from 0
        and differ from `ctx`, but they keep their step numbers in the generated text.
        """
        if state is None:
            rows = self.rows_in_table(tokens)
            return self.model.logits(rows, None, _shift_context(ctx, rows), last=last, **inputs)
        source = inputs.get("source", state.source)
        history = torch.cat([state.read, tokens], 1)
        if tokens.shape[1] > 1:  # padding before the new tokens would separate them from the tokens read
            history = _pad_left(history)
        if history.shape[1] <= self.window:
            out = self.model.logits(tokens, state.model_state, ctx, last=last, **inputs)
            return out._replace(state=SlidingState(history, source, out.state))
        new = (tokens >= 0).sum(1)
        over = state.model_state.now + new > self.window
        if not bool(over.any()):
            out = self.model.logits(tokens, state.model_state, ctx, last=last, **inputs)
            return out._replace(state=SlidingState(history[:, -self.window :], source, out.state))
        counts = torch.where(over, self._tokens_in_table(state.model_state.now + new), new)
        rows = _last_tokens(history, counts, max(int(counts.max()), 1))
        reread_inputs = {"source": source} if isinstance(source, Tensor) else {}
        if not reread_inputs and self.model.reads == "pairs":
            raise ValueError(
                "the table of positions is full, and reading its last half again needs the source; pass source="
            )
        model_state = reset(state.model_state, over)
        out = self.model.logits(rows, model_state, _shift_context(ctx, rows, model_state), last=last, **reread_inputs)
        read = rows if bool(over.all()) else history[:, -self.window :]
        return out._replace(state=SlidingState(read, source, out.state))

    def rows_in_table(self, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B _"]:
        """Return the tokens that the model reads for the token after each row, with -1 before them.

        tokens: rows of tokens; -1 is padding.
        """
        return _last_tokens(tokens, self._tokens_in_table((tokens >= 0).sum(1)), self.window)

    def _tokens_in_table(self, count: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Return the number of tokens in the table: all, or the kept half and the tokens after it."""
        half = self.window // 2
        return torch.where(count <= self.window, count, half + 1 + (count - self.window - 1) % (self.window - half))


def _shift_context(ctx: Context | None, rows: Int[Tensor, "B T"], state: Any = None) -> Context | None:
    """Return the context of rows that end where `ctx` ends, numbered from a state or from 0; None without decoding."""
    if ctx is None or ctx.decoding is None:
        return None
    step = ctx.decoding.step[:, -1:] + torch.arange(1 - rows.shape[1], 1, device=rows.device)
    return context_of_tokens(rows, state).replace(decoding=ctx.decoding._replace(step=step))


def _last_tokens(tokens: Int[Tensor, "B T"], counts: Int[Tensor, " B"], width: int) -> Int[Tensor, "B _"]:
    """Return the last `counts` tokens of each row in the last columns, with -1 before them."""
    after = (tokens >= 0).flip(1).cumsum(1).flip(1)  # number of tokens from each token to the end
    return torch.where(after <= counts[:, None], tokens, -1)[:, -width:]


def _pad_left(tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Return the same rows with the padding moved to the left."""
    return tokens.take_along_dim((tokens >= 0).to(torch.uint8).argsort(dim=1, stable=True), 1)


def must_slide(model: Any, length: int) -> bool:
    """Return True, with a warning, if a model's table of learned positions is shorter than a text.

    model: any model.
    length: number of tokens of the text.
    """
    window = getattr(model, "window", None)
    if window is None or length <= window:
        return False
    warn(
        f"{length:,} tokens are more than the {window:,} positions that this model has learned in training. "
        "Whenever they are full, the last half is read again from position 0. "
        "Train with a larger length for a longer context"
    )
    return True


def fit_to_window(model: Any, batch: TokenBatch, extra_tokens: int = 0, state: State | None = None) -> TokenBatch:
    """Return the batch with padding only at the end of rows if a row exceeds the learned positions.

    Such rows are read in windows, which begin at their first token.

    model: any model.
    batch: rows of tokens.
    extra_tokens: number of tokens that the model reads besides these.
    state: decoding state to continue from; with a state the batch stays as it is.
    """
    return batch.to_the_left() if state is None and must_slide(model, batch.tokens.shape[1] + extra_tokens) else batch


def read_in_windows(
    read: Callable[[Int[Tensor, "B W *n"]], Out],
    tokens: Int[Tensor, "B T *n"],
    window: int | None,
    state: State | None = None,
) -> Out:
    """Return logits and auxiliary values of rows of any length, read in windows that overlap by half.

    Rows must have no padding before their first token, and each window starts at position 0. With a state, the rows are
    read at once.

    read: function that computes the output of one window.
    tokens: rows of tokens.
    window: number of positions; None for no limit.
    state: decoding state to continue from.
    """
    length = tokens.shape[1]
    if state is not None or window is None or length <= window:
        return read(tokens)
    half = window // 2
    outs = [read(tokens[:, :window])]
    for first in range(window - half, length - half, window - half):
        out = read(tokens[:, first : first + window])
        aux = {name: value[:, half:] if value.dim() else value for name, value in out.aux.items()}
        outs.append(out._replace(y=out.y[:, half:], aux=aux))
    return concatenate_outs(outs)
