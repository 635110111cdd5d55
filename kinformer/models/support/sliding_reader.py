"""Reading beyond a table of learned positions: when it is full, its last half is read again from position 0."""

import warnings
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


class SlidingState(NamedTuple):
    """State of a `SlidingReader`: the last tokens read (at most a window), a source or (), the model's own state."""

    read: Int[Tensor, "B W"]
    source: Int[Tensor, "B S"] | tuple[()]
    model_state: Any

    @property
    def now(self) -> Int[Tensor, " B"]:
        """The model's next position of each row."""
        return self.model_state.now


class SlidingReader:
    """A writer beyond its table of positions: when `window` tokens stand in it, its last half is read again from 0.

    It has the writer's `start` and `logits`, so that whoever writes with one writes with the other. A row slides by the
    number of its own tokens, whatever padding and batch mates it has; what it reads of a token depends on the tokens
    before it alone, not on how the row was cut.

    model: the writer.
    window: how many positions it has, of which the half that is kept is rounded down.
    """

    def __init__(self, model: Any, window: int):
        self.model, self.window = model, window

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> SlidingState:
        model_state = self.model.start(batch, min(length, self.window), dtype=dtype, device=device)
        return self.continue_from(model_state)

    def continue_from(self, model_state: State) -> SlidingState:
        """The state of a model that has read before: what it read is not known, so it is not read again."""
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
        """The model's, of the tokens or with `last` of the last one; where a row slides, of what it reads again too.

        Where a row slides its tokens have other positions than the ctx says; they keep their steps of decoding.
        """
        if state is None:
            rows = _last_tokens(tokens, self._count_in_table(tokens), self.window)
            return self.model.logits(rows, None, _shift_context(ctx, rows), last=last, **inputs)
        source = inputs.get("source", state.source)
        history = torch.cat([state.read, tokens], 1)
        if tokens.shape[1] > 1:  # padding before new tokens stands behind what was read
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
                "the table of positions is full, and to read its last half again takes the source; give it"
            )
        model_state = reset(state.model_state, over)
        out = self.model.logits(rows, model_state, _shift_context(ctx, rows, model_state), last=last, **reread_inputs)
        read = rows if bool(over.all()) else history[:, -self.window :]
        return out._replace(state=SlidingState(read, source, out.state))

    def _count_in_table(self, tokens: Int[Tensor, "B T"]) -> Int[Tensor, " B"]:
        return self._tokens_in_table((tokens >= 0).sum(1))

    def _tokens_in_table(self, count: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """How many of so many tokens stand in the table: all, or a half and those that came since it was full."""
        half = self.window // 2
        return torch.where(count <= self.window, count, half + 1 + (count - self.window - 1) % (self.window - half))


def _shift_context(ctx: Context | None, rows: Int[Tensor, "B T"], state: Any = None) -> Context | None:
    """The context of rows that end where those of `ctx` do, numbered on from a state or anew; None without a ctx."""
    if ctx is None or ctx.decoding is None:
        return None
    step = ctx.decoding.step[:, -1:] + torch.arange(1 - rows.shape[1], 1, device=rows.device)
    return context_of_tokens(rows, state).replace(decoding=ctx.decoding._replace(step=step))


def _last_tokens(tokens: Int[Tensor, "B T"], counts: Int[Tensor, " B"], width: int) -> Int[Tensor, "B _"]:
    """The last tokens of each row, so many of them, in the last columns; -1 before them."""
    after = (tokens >= 0).flip(1).cumsum(1).flip(1)  # of each token, how many stand from it on
    return torch.where(after <= counts[:, None], tokens, -1)[:, -width:]


def _pad_left(tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The same rows, padding first."""
    return tokens.take_along_dim((tokens >= 0).to(torch.uint8).argsort(dim=1, stable=True), 1)


def must_slide(model: Any, length: int) -> bool:
    """Has the model a table of positions that holds less than so many tokens? A warning then says that it slides."""
    window = getattr(model, "window", None)
    if window is None or length <= window:
        return False
    warnings.warn(
        f"{length:,} tokens are more than the {window:,} positions that this model has learned: each time they are "
        "full, the last half is read again from position 0; train with a larger length to read further at once",
        stacklevel=3,
    )
    return True


def fit_to_window(model: Any, batch: TokenBatch, extra_tokens: int = 0, state: State | None = None) -> TokenBatch:
    """Move the tokens to the left if the model must slide over them; it reads `extra_tokens` besides these."""
    return batch.to_the_left() if state is None and must_slide(model, batch.tokens.shape[1] + extra_tokens) else batch


def read_in_windows(
    read: Callable[[Int[Tensor, "B W *n"]], Out],
    tokens: Int[Tensor, "B T *n"],
    window: int | None,
    state: State | None = None,
) -> Out:
    """Logits and aux of rows that begin in their first column: the last half of each full table is read again from 0.

    What goes on from a state is read at once.
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
