"""Prompt lookup decoding: greedy decoding in which one pass of the model checks several copied tokens."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.state import branch, fork
from kinformer.core.unrepeatable import unrepeatable_parts
from kinformer.decoding.generation_state import GenerationState, append_tokens, logits_of_last
from kinformer.decoding.sampling import Choose, Stop, TokensCallback, report_tokens
from kinformer.models.support.sliding_reader import SlidingReader

LONGEST_NGRAM = 3  # tokens at the end of a text that are searched in the text before


class EarlierTokens:
    """Tokens of a row, with the place after the first occurrence of each sequence of up to 3 of them.

    The places are stored once for each token, so a search takes the same time in a row of any length.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end of the row.

        tokens: the tokens; -1 is padding.
        """
        for token in tokens:
            if token >= 0:
                for size in range(1, min(LONGEST_NGRAM, len(self.tokens)) + 1):
                    self._next.setdefault(tuple(self.tokens[-size:]), len(self.tokens))
                self.tokens.append(token)

    def propose(self, count: int) -> list[int]:
        """Return up to `count` tokens that followed the last tokens of the row where these occur first in it.

        The last 3 tokens are searched, then the last 2, then the last one. An empty list means that nothing was found.

        count: largest number of tokens to return.
        """
        for size in range(min(LONGEST_NGRAM, len(self.tokens) - 1), 0, -1) if count > 0 else ():
            if (place := self._next.get(tuple(self.tokens[-size:]))) is not None:
                return self.tokens[place : place + count]
        return []


def lookup_steps(
    model: Any,
    text: GenerationState,
    steps: int,
    stop: Stop | None,
    choose: Choose,
    count: int,
    on_tokens: TokensCallback | None,
) -> Iterator[Int[Tensor, "1 N"]]:
    """Yield the row after each new token, with the tokens of greedy decoding in fewer passes of the model.

    The last tokens are searched in the row so far, and the tokens that followed them there are proposed. One pass of
    the model reads the proposed tokens, and the longest beginning that agrees with its own choices is kept. Choose it
    for texts that repeat their prompt, such as summaries, edits and code. Without repetition it saves nothing.

    A branch of the decoding state, or a fork for a model of other code, reads the proposed tokens. After a wrong one
    the original continues, and the right tokens are read again with the next ones. So any decoding state can be used,
    also one that cannot be shortened. While more than `count` tokens wait to be read, nothing is proposed.

    model: model with `logits`.
    text: one prompt and the model's decoding state.
    steps: largest number of new tokens.
    stop: function from the new tokens to the rows that have ended; None if no row ends.
    choose: function from logits and rows to the likeliest tokens.
    count: largest number of tokens that are proposed at a time.
    on_tokens: called with each new token and its log-probability.

    Source: Saxena, 2023, "Prompt Lookup Decoding", https://github.com/apoorvumang/prompt-lookup-decoding.
    """
    first, earlier, searched = text.rows.shape[1], EarlierTokens(), 0
    copy = branch if _reads_at_once(model) else fork
    while (remaining := first + steps - text.rows.shape[1]) > 0:
        size = min(count, remaining - 1, _free_positions(model, text))
        earlier.extend(text.rows[0, searched:].tolist())
        searched = text.rows.shape[1]
        proposed = earlier.propose(size if text.unread <= count else 0)
        longer = torch.cat([text.rows, text.rows.new_tensor([proposed])], 1) if proposed else text.rows
        before, state = text, copy(text.state) if proposed else text.state
        read = text._replace(rows=longer, unread=text.unread + len(proposed), state=state)
        logits, after = logits_of_last(model, read, len(proposed) + 1)
        for place in range(len(proposed) + 1):
            new = choose(logits[:, place], before.rows)
            report_tokens(on_tokens, logits[:, place], new)
            before = append_tokens(before, new)
            yield before.rows
            if stop is not None and bool(stop(before.rows[:, first:]).all()):
                return
            if proposed[place : place + 1] != new.tolist():
                break
        all_accepted = place == len(proposed)
        text = after._replace(rows=before.rows, unread=1) if all_accepted else before


def check_lookup(model: Any, count: int, rows: int, recompute: bool) -> None:
    """Raise ValueError if prompt lookup could not give the tokens of greedy decoding.

    model: model that generates.
    count: largest number of tokens that are proposed at a time.
    rows: number of prompts.
    recompute: argument of `generate`.
    """
    if recompute:
        raise ValueError(
            f"prompt_lookup={count} needs a decoding state: got recompute=True, expected False. Use a model with a "
            "state, or leave prompt_lookup out"
        )
    if rows > 1:
        raise ValueError(
            f"prompt_lookup={count} continues one prompt at a time: got {rows} rows, expected 1. Call generate for "
            "each prompt, or leave prompt_lookup out"
        )
    for reason, remedy in unrepeatable_parts(model):
        raise ValueError(
            f"prompt_lookup={count} would change the tokens: {reason}, expected equal results for pieces of a row. "
            f"Leave prompt_lookup out, or {remedy}"
        )


def _reads_at_once(model: Any) -> bool:
    """Return True if a model reads its tokens in one call of each layer; models of other code may divide them."""
    model = model.model if isinstance(model, SlidingReader) else model
    return type(model).__module__.startswith("kinformer.")


def _free_positions(model: Any, text: GenerationState) -> int:
    """Return the number of tokens that may be proposed before the model's window of learned positions must move.

    A window that moves within a pass would change the logits of its first tokens.
    """
    if not isinstance(model, SlidingReader):
        return text.max_new_tokens
    return model.window - int(cast(Any, text.state).now.max()) - text.unread
