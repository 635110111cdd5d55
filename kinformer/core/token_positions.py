"""Positions: the positions of a batch's tokens, and the state of a model that continues them."""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.layer import Context, State, count_positions, gaps
from kinformer.core.memo import Memo
from kinformer.core.vocabulary import check_token_rows

GAP = (
    "attention_mask (or -1) marks padding between two tokens of a row; expected padding only before or after its tokens"
)


class NumberedState(NamedTuple):
    """The decoding state of a model that numbers its tokens by position.

    now: the position of each row's next token.
    body: the decoding state of the model's stack of layers.
    """

    now: Int[Tensor, " B"]
    body: State


def context_of_tokens(tokens: Int[Tensor, "B T"], state: NumberedState | None = None) -> Context:
    """Return the context of tokens, numbered from 0 or from the positions in a state.

    The context promises that padding holds finite numbers (`is_clean`), as embeddings of tokens do. A model whose
    inputs are numbers must write zeros at padding itself.

    tokens: the rows, -1 at padding.
    state: the state to continue from, or None.

    Errors: TypeError if tokens are not integers, or for a state of another kind. ValueError if they are not rows, if
    padding stands between tokens, or for a state of another number of rows.
    With a state, the padding is checked later in the forward pass; without a state, at once.
    """
    memo = Memo()
    tokens = check_token_rows(tokens)
    if state is not None:
        if not hasattr(state, "now"):
            raise TypeError(
                f"the state is of type {type(state).__name__}, expected the state of model.start(batch, length) or of "
                "the call before. The targets are the next tokens of each row, and -1 marks padding in the tokens"
            )
        if len(state.now) != len(tokens):
            raise ValueError(
                f"the state has {len(state.now)} rows, but the tokens have {len(tokens)}; start a state for "
                f"{len(tokens)} rows"
            )
        return Context(continue_positions(tokens, state.now, memo), run=True, memo=memo, is_clean=True)
    ((pos, full),) = start_positions(memo, tokens)
    return Context(pos, run=True, full=full, memo=memo, is_clean=True)


def start_positions(memo: Memo, *batches: Int[Tensor, "B _"]) -> list[tuple[Int[Tensor, "B _"], bool]]:
    """Return the positions of each batch of new rows, numbered from 0, and whether no token is padding.

    Whether tokens are padding is inspected once for all batches. They are not inspected under compile, or if no row has
    two tokens. Rows without padding share one row of positions, and therefore one mask.

    memo: the memo (shared results) of the forward pass.
    batches: rows of tokens, -1 at padding.

    Errors: ValueError if padding stands between tokens.
    """
    if torch.compiler.is_compiling() or all(tokens.shape[1] < 2 for tokens in batches):
        return [(count_positions(tokens >= 0), False) for tokens in batches]
    flags = memo.look(*(test.any() for tokens in batches for test in (tokens < 0, gaps(tokens >= 0))))
    if any(flags[1::2]):
        raise ValueError(GAP)
    return [
        (count_positions(tokens >= 0), False)
        if padded
        else (torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1), True)
        for tokens, padded in zip(batches, flags[::2], strict=True)
    ]


def continue_positions(tokens: Int[Tensor, "B T"], now: Int[Tensor, " B"], memo: Memo) -> Int[Tensor, "B T"]:
    """Return the positions of a chunk of tokens: consecutive from `now`, -1 at padding.

    tokens: the chunk, -1 at padding.
    now: the position of each row's next token.
    memo: the memo (shared results) of the forward pass; it checks later that no padding stands between tokens.
    """
    if tokens.shape[1] > 1 and not torch.compiler.is_compiling():
        memo.expect(~gaps(tokens >= 0), GAP)
    return count_positions(tokens >= 0, now[:, None])


def next_positions(now: Int[Tensor, " B"], pos: Int[Tensor, "B T"]) -> Int[Tensor, " B"]:
    """Return the position of each row's next token after a chunk with the positions `pos`.

    now: the position of each row's next token before the chunk.
    pos: positions of the chunk, -1 at padding; there may be none.
    """
    return torch.maximum(now, pos.amax(1) + 1) if pos.shape[1] else now


def check_in_order(ctx: Context, name: str, instead: str = "") -> None:
    """Raise ValueError if `ctx.run` does not promise tokens in the order of their positions.

    name: name, in the message, of the layer that takes the order in the tensor as time.
    instead: further advice at the end of the message.
    """
    if not ctx.run:
        advice = f"number tokens consecutively and pass Context(pos, run=True){instead}"
        raise ValueError(f"{name} needs the tokens in the order of their positions; {advice}")
