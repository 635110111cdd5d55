"""Numbering: the positions of a batch's tokens, and the state of a model that goes on numbering them."""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.layer import Context, State, count_positions, gaps
from kinformer.core.memo import Memo
from kinformer.core.vocabulary import check_token_rows

GAP = "a row has padding (-1) between its tokens; padding may stand before or after them only"


class NumberedState(NamedTuple):
    """A model's state: the next position of each row, and the body's state."""

    now: Int[Tensor, " B"]
    body: State


def context_of_tokens(tokens: Int[Tensor, "B T"], state: NumberedState | None = None) -> Context:
    """The context of tokens, -1 at padding, that are numbered from 0 or on from a state.

    Embeddings of tokens are finite, so the context is marked as clean. A model of numbers writes zeros at padding
    itself.

    Errors: TypeError for other than whole numbers, ValueError for other than rows; and for padding between tokens, at
    once without a state, at the forward's one look with one.
    """
    memo = Memo()
    tokens = check_token_rows(tokens)
    if state is not None:
        return Context(continue_positions(tokens, state.now, memo), run=True, memo=memo, is_clean=True)
    ((pos, full),) = start_positions(memo, tokens)
    return Context(pos, run=True, full=full, memo=memo, is_clean=True)


def start_positions(memo: Memo, *batches: Int[Tensor, "B _"]) -> list[tuple[Int[Tensor, "B _"], bool]]:
    """For each batch of rows that begin at 0 their positions, and whether it is known that none is padding.

    One look at all of them; none under compile, and none where no row has two tokens. Rows without padding share one
    row of positions, and so one mask.
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
    """Positions of a chunk: consecutive from `now` over real tokens, -1 at padding."""
    if tokens.shape[1] > 1 and not torch.compiler.is_compiling():
        memo.expect(~gaps(tokens >= 0), GAP)
    return count_positions(tokens >= 0, now[:, None])


def next_positions(now: Int[Tensor, " B"], pos: Int[Tensor, "B T"]) -> Int[Tensor, " B"]:
    """The next position of each row once positions `pos`, which may be none, have been read."""
    return torch.maximum(now, pos.amax(1) + 1) if pos.shape[1] else now
