"""Beam search: each step extends all kept rows by one token and keeps the most likely results."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.decoding.generation_state import GenerationState, append_tokens, next_logits, pad_rows, select_rows
from kinformer.decoding.repetition_penalty import penalize_repetition
from kinformer.decoding.sampling import Stop, TokensCallback, keep_top_k


def search(
    model: Any,
    text: GenerationState,
    steps: int,
    beam: int,
    best: int,
    stop: Stop | None,
    length_penalty: float,
    repetition_penalty: float | None,
    on_tokens: TokensCallback | None,
) -> Int[Tensor, "B N"]:
    """Return the best rows of each prompt, with up to `steps` new tokens, found by beam search.

    The rows of a prompt follow each other, the best first. If fewer rows exist, the others have no new tokens.

    The score of a row with n new tokens is log-probability / ((5 + n) / 6)**length_penalty. Each step considers, for
    each prompt, the 2 * beam most likely rows that are one token longer, and keeps the first `beam` of them that do not
    end. A row that ends can become a result only if it is among the first `beam`.

    model: model with `logits`.
    text: prompts and the model's decoding state.
    steps: largest number of new tokens.
    beam: number of rows to keep for each prompt.
    best: number of rows to return for each prompt, at most `beam`.
    stop: function from the new tokens to the rows that have ended; None if no row ends.
    length_penalty: exponent of the length penalty; 0 favours short rows.
    repetition_penalty: factor of the log-probabilities of tokens that a row already has; None for 1.
    on_tokens: called after the search with the tokens of the best rows, step by step.
    """
    batch, first = text.rows.shape
    score = torch.zeros(batch, 1, device=text.rows.device)  # score of each kept row; at first one row, the prompt
    likely = text.rows.new_empty(batch, 1, 0, dtype=score.dtype)  # log-probability of each new token
    results = _Results(text.rows, steps, best)
    for step in range(1, steps + 1):
        logits, text = next_logits(model, text)
        before = score
        log_probability = penalize_repetition(logits.log_softmax(-1), text.rows, repetition_penalty)
        score, parent, new = _continuations(score, log_probability, 2 * beam)
        likely = likely.flatten(0, 1)[parent]
        likely = torch.cat([likely, (score - before.flatten()[parent])[..., None]], -1)
        rows = torch.cat([text.rows[parent], new[..., None]], -1)
        ends = torch.zeros_like(new, dtype=torch.bool)
        if stop is not None:
            ends = stop(rows[..., first:].flatten(0, 1)).view_as(ends)
        worth = score / length_norm(step, length_penalty)
        results.update((worth.masked_fill(~ends, -torch.inf))[:, :beam], rows[:, :beam], likely[:, :beam])
        live = ends.to(torch.uint8).argsort(dim=1, stable=True)[:, :beam]
        score = score.masked_fill(ends, -torch.inf).take_along_dim(live, 1)
        parent, new = parent.take_along_dim(live, 1), new.take_along_dim(live, 1)
        likely = likely.take_along_dim(live[..., None], 1)
        text = append_tokens(select_rows(text, parent.flatten()), new.flatten())
        # no unfinished row can become a result: sums only fall, and the largest length has the largest divisor
        if bool((results.worth[:, -1] >= score.amax(1) / length_norm(steps, length_penalty)).all()):
            break
    results.update(score / length_norm(steps, length_penalty), text.rows.unflatten(0, score.shape), likely)
    for n in range(steps if on_tokens is not None else 0):
        new = results.rows[..., first + n].flatten()
        if on_tokens is not None and bool((new >= 0).any()):
            on_tokens(new, results.likely[..., n].flatten())
    return results.rows.flatten(0, 1)


class _Results:
    """Best rows of each prompt so far, padded to the full width, with their tokens' log-probabilities and scores."""

    def __init__(self, prompts: Int[Tensor, "B T"], steps: int, best: int) -> None:
        batch, width = prompts.shape
        self.rows = pad_rows(prompts, width + steps)[:, None].repeat(1, best, 1)
        self.likely = torch.zeros(batch, best, steps, device=prompts.device)
        self.worth = torch.full((batch, best), -math.inf, device=prompts.device)

    def update(self, worth: Float[Tensor, "B R"], rows: Int[Tensor, "B R T"], likely: Float[Tensor, "B R N"]) -> None:
        """Keep the rows with the highest scores among the results and these rows; earlier ones win ties."""
        best, width, steps = self.worth.shape[1], self.rows.shape[-1], self.likely.shape[-1]
        padding = width - rows.shape[-1]
        every_row = torch.cat([self.rows, torch.nn.functional.pad(rows, (0, padding), value=-1)], 1)
        likely = torch.nn.functional.pad(likely, (0, steps - likely.shape[-1])).to(self.likely.dtype)
        every_worth, every_likely = torch.cat([self.worth, worth], 1), torch.cat([self.likely, likely], 1)
        ordered, order = torch.sort(every_worth, dim=1, descending=True, stable=True)
        self.worth, order = ordered[:, :best], order[:, :best, None]
        self.rows, self.likely = every_row.take_along_dim(order, 1), every_likely.take_along_dim(order, 1)


def length_norm(length: int, penalty: float) -> float:
    """Return the divisor of the log-probability of a row, ((5 + length) / 6)**penalty.

    length: number of new tokens.
    penalty: exponent of the length penalty.

    Source: Wu et al., 2016, arXiv:1609.08144, section 7.
    """
    return ((5 + length) / 6) ** penalty


def _continuations(
    score: Float[Tensor, "B R"], log_probability: Float[Tensor, "BR V"], k: int
) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"], Int[Tensor, "B N"]]:
    """Return score, row and token of the k most likely continuations, best first.

    Ties go to the smaller row and token.
    """
    batch, rows = score.shape
    scores = (score[..., None] + log_probability.unflatten(0, (batch, rows))).flatten(1)  # [B R*V]
    top_scores = keep_top_k(scores, k)
    # order the kept ones by place, then stably by score
    places = torch.where(top_scores > -torch.inf, 1, 0).topk(min(k, top_scores.shape[1])).indices.sort(-1).values
    best = top_scores.take_along_dim(places, -1)
    best, order = torch.sort(best, dim=-1, descending=True, stable=True)
    places = places.take_along_dim(order, -1)
    first = torch.arange(batch, device=score.device)[:, None] * rows
    return best, first + places // log_probability.shape[-1], places % log_probability.shape[-1]
