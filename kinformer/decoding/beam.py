"""Beam search: each step extends all kept rows by one token and keeps the most likely results."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.decoding.generation_state import GenerationState, append_tokens, next_logits, pad_rows, select_rows
from kinformer.decoding.sampling import Stop, TokensCallback, keep_top_k


def search(
    model: Any,
    text: GenerationState,
    steps: int,
    beam: int,
    stop: Stop | None,
    penalty: float,
    on_tokens: TokensCallback | None,
) -> Int[Tensor, "B N"]:
    """Return the best row of each prompt, with up to `steps` new tokens, found by beam search.

    The score of a row with n new tokens is its log-probability / ((5 + n) / 6)**penalty. Each step considers, for each
    prompt, the 2 * beam most likely rows that are one token longer, and keeps the first `beam` of them that do not end.
    A row that ends can become the result only if it is among the first `beam`.

    model: model with `logits`.
    text: prompts and the model's decoding state.
    steps: largest number of new tokens.
    beam: number of rows to keep for each prompt.
    stop: function from the new tokens to the rows that have ended; None if no row ends.
    penalty: exponent of the length penalty; 0 favours short rows.
    on_tokens: called after the search with the tokens of the best rows, step by step.
    """
    batch, first = text.rows.shape
    score = torch.zeros(batch, 1, device=text.rows.device)  # score of each kept row; at first one row, the prompt
    likely = text.rows.new_empty(batch, 1, 0, dtype=score.dtype)  # log-probability of each new token
    best = _Best(text.rows, steps)
    for step in range(1, steps + 1):
        logits, text = next_logits(model, text)
        before = score
        score, parent, new = _continuations(score, logits, 2 * beam)
        likely = likely.flatten(0, 1)[parent]
        likely = torch.cat([likely, (score - before.flatten()[parent])[..., None]], -1)
        rows = torch.cat([text.rows[parent], new[..., None]], -1)
        ends = torch.zeros_like(new, dtype=torch.bool)
        if stop is not None:
            ends = stop(rows[..., first:].flatten(0, 1)).view_as(ends)
        worth = score / _norm(step, penalty)
        best.update((worth.masked_fill(~ends, -torch.inf))[:, :beam], rows[:, :beam], likely[:, :beam])
        live = ends.to(torch.uint8).argsort(dim=1, stable=True)[:, :beam]
        score = score.masked_fill(ends, -torch.inf).take_along_dim(live, 1)
        parent, new = parent.take_along_dim(live, 1), new.take_along_dim(live, 1)
        likely = likely.take_along_dim(live[..., None], 1)
        text = append_tokens(select_rows(text, parent.flatten()), new.flatten())
        # no unfinished row can still win: sums only fall, and the largest length has the largest divisor
        if bool((best.worth >= score.amax(1) / _norm(steps, penalty)).all()):
            break
    best.update(score / _norm(steps, penalty), text.rows.unflatten(0, score.shape), likely)
    for n in range(steps if on_tokens is not None else 0):
        new = best.rows[:, first + n]
        if on_tokens is not None and bool((new >= 0).any()):
            on_tokens(new, best.likely[:, n])
    return best.rows


class _Best:
    """Best row of each prompt so far, padded to the full width, with its tokens' log-probabilities and its score."""

    def __init__(self, prompts: Int[Tensor, "B T"], steps: int) -> None:
        self.rows = pad_rows(prompts, prompts.shape[1] + steps)
        self.likely = torch.zeros(len(prompts), steps, device=prompts.device)
        self.worth = torch.full_like(self.likely[:, 0] if steps else prompts[:, 0].float(), -torch.inf)

    def update(self, worth: Float[Tensor, "B R"], rows: Int[Tensor, "B R T"], likely: Float[Tensor, "B R N"]) -> None:
        """Replace the best row of each prompt for which one of these rows has a higher score."""
        best_worth, index = worth.max(1)
        every = torch.arange(len(worth), device=worth.device)
        better = (best_worth > self.worth)[:, None]
        width, steps = self.rows.shape[1], self.likely.shape[1]
        self.rows = torch.where(better, pad_rows(rows[every, index], width), self.rows)
        new = torch.nn.functional.pad(likely[every, index], (0, steps - likely.shape[2]))
        self.likely = torch.where(better, new.to(self.likely.dtype), self.likely)
        self.worth = torch.maximum(best_worth, self.worth)


def _norm(length: int, penalty: float) -> float:
    return ((5 + length) / 6) ** penalty


def _continuations(
    score: Float[Tensor, "B R"], logits: Float[Tensor, "BR V"], k: int
) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"], Int[Tensor, "B N"]]:
    """Return score, row and token of the k most likely continuations, best first.

    Ties go to the smaller row and token.
    """
    batch, rows = score.shape
    scores = (score[..., None] + logits.log_softmax(-1).unflatten(0, (batch, rows))).flatten(1)  # [B R*V]
    top_scores = keep_top_k(scores, k)
    # order the kept ones by place, then stably by score
    places = torch.where(top_scores > -torch.inf, 1, 0).topk(min(k, top_scores.shape[1])).indices.sort(-1).values
    best = top_scores.take_along_dim(places, -1)
    best, order = torch.sort(best, dim=-1, descending=True, stable=True)
    places = places.take_along_dim(order, -1)
    first = torch.arange(batch, device=score.device)[:, None] * rows
    return best, first + places // logits.shape[-1], places % logits.shape[-1]
