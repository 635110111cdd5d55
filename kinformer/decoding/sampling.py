"""Sampling: choose tokens one after the other at random from the model's distribution."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.checks import check_finite_number, check_unused, check_whole_number
from kinformer.core.model import LEAST_TEMPERATURE
from kinformer.core.quote import quote
from kinformer.decoding.generation_state import GenerationState, next_logits
from kinformer.decoding.repetition_penalty import check_repetition_penalty, penalize_repetition

FIRST = 64  # tokens that top-p sorts first; it sorts more only if needed
Stop = Callable[[Int[Tensor, "B N"]], Bool[Tensor, " B"]]
TokensCallback = Callable[[Int[Tensor, " B"], Float[Tensor, " B"]], None]
Seed = int | Sequence[int] | None
Choose = Callable[[Float[Tensor, "B V"], Int[Tensor, "B T"]], Int[Tensor, " B"]]
TEMPERATURE, TOP_P = 0.6, 0.9  # defaults of sampling if no argument is given
LENGTH_PENALTY = 0.6  # Wu et al., 2016


class Sampling(NamedTuple):
    """Options of sampling; temperature 0 takes the likeliest token.

    temperature, top_k, top_p, min_p, repetition_penalty: as in `generate`.
    """

    temperature: float
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @staticmethod
    def with_defaults(
        temperature: float | None,
        top_k: int | None,
        top_p: float | None,
        min_p: float | None,
        repetition_penalty: float | None,
    ) -> "Sampling":
        """Fill in defaults: temperature 0.6 and top_p 0.9 if no option is given, else temperature 1.

        temperature, top_k, top_p, min_p, repetition_penalty: arguments of `generate`.
        """
        if (temperature, top_k, top_p, min_p) == (None, None, None, None):
            return Sampling(TEMPERATURE, top_p=TOP_P, repetition_penalty=repetition_penalty)
        return Sampling(1.0 if temperature is None else temperature, top_k, top_p, min_p, repetition_penalty)

    def check(self) -> None:
        """Raise ValueError for invalid numbers."""
        temperature, top_k, top_p, min_p, repetition_penalty = self
        check_repetition_penalty(repetition_penalty)
        check_finite_number("temperature", temperature)
        if top_k is not None:
            check_whole_number("top_k", top_k)
        if top_p is not None:
            check_finite_number("top_p", top_p)
        if min_p is not None:
            check_finite_number("min_p", min_p)
        if not 0 <= temperature < math.inf:
            raise ValueError(
                f"temperature={temperature} is not a number from 0 up; 0 takes the most probable token, 1 samples from "
                "the unchanged probabilities"
            )
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k={top_k} leaves no token; give 1 or more, or None for all tokens")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"top_p={top_p} is not a probability above 0; give at most 1, or None for all tokens")
        if min_p is not None and not 0 <= min_p <= 1:
            raise ValueError(
                f"wrong min_p: got {min_p}, expected a number from 0 to 1. Give 0 to keep all tokens, or leave it out"
            )

    def refuse_truncation(self, why: str) -> None:
        """Raise ValueError for options that choose the tokens to sample from, if no token is sampled.

        why: the condition that disables them, as `check_unused` takes it.
        """
        check_unused(why, top_k=(self.top_k, None), top_p=(self.top_p, None), min_p=(self.min_p, None))


def sample_steps(
    model: Any, text: GenerationState, steps: int, stop: Stop | None, choose: Choose, on_tokens: TokensCallback | None
) -> Iterator[Int[Tensor, "B N"]]:
    """Yield the rows after each new token, which `choose` takes from the logits, up to `steps` times.

    model: model with `logits`.
    text: prompts and the model's decoding state.
    steps: largest number of new tokens.
    stop: function from the new tokens to the rows that have ended; None if no row ends.
    choose: function from logits and rows to tokens.
    on_tokens: called at each step with the new tokens and their log-probabilities.
    """
    first, room = text.rows.shape[1], text.rows
    done = torch.zeros(len(text.rows), dtype=torch.bool, device=text.rows.device)
    for step in range(steps):
        ended = int(done.sum()) if stop is not None and step else 0
        if ended == len(done):
            break
        if ended:
            text = text._replace(full=False)  # ended rows are padding
        logits, text = next_logits(model, text)
        new = choose(logits, text.rows)
        if ended:
            new = torch.where(done, -1, new)
        report_tokens(on_tokens, logits, new)
        if (length := text.rows.shape[1]) == room.shape[1]:  # a longer copy for each token would slow long texts
            with torch.inference_mode(False):  # a stream may be continued outside of it
                room = torch.cat([text.rows, torch.empty_like(text.rows)], 1)
        room[:, length] = new
        text = text._replace(rows=room[:, : length + 1], unread=text.unread + 1)
        if stop is not None:
            done = done | stop(text.rows[:, first:])
        yield text.rows


def checked_stop(stop: Stop) -> Stop:
    """Return a function that calls `stop` and checks its result.

    stop: function from the new tokens to the rows that have ended.

    Errors: ValueError for a result that is no bool tensor with a value for each row.
    """

    def ends(new: Int[Tensor, "B N"]) -> Bool[Tensor, " B"]:
        ended = stop(new)
        if not (isinstance(ended, Tensor) and ended.dtype == torch.bool and ended.shape == new.shape[:1]):
            actual = f"{ended.dtype} of shape {list(ended.shape)}" if isinstance(ended, Tensor) else quote(ended)
            raise ValueError(
                f"wrong result of stop: got {actual}, expected a bool tensor of shape [{len(new)}]. Return True at "
                "each row that has ended"
            )
        return ended

    return ends


def report_tokens(on_tokens: TokensCallback | None, logits: Float[Tensor, "B V"], new: Int[Tensor, " B"]) -> None:
    """Call `on_tokens`, if given, with new tokens and their log-probabilities, 0 for rows that have ended.

    on_tokens: the function.
    logits: scores that the tokens were chosen from.
    new: the tokens, -1 for rows that have ended.
    """
    if on_tokens is not None:
        likely = logits.log_softmax(-1).take_along_dim(new.clamp_min(0)[:, None], 1)[:, 0]
        on_tokens(new, likely.where(new >= 0, 0.0))


def row_seeds(seed: Seed, rows: int) -> Sequence[int] | None:
    """Return the seed of each row: `seed` for the first row and the next numbers for further rows.

    A row is then sampled as it would be without the other rows.

    seed: seed of the first row, the seeds of all rows, or None for none.
    rows: number of rows.
    """
    return [(seed + row) % 2**64 for row in range(rows)] if isinstance(seed, int) else seed


def make_sampler(sampling: Sampling, seeds: Sequence[int] | None, device: torch.device) -> Choose:
    """Return a function that samples one token for each row, from its logits and its tokens so far.

    sampling: options. A temperature of 0, or below the range of float32, takes the most likely token.
    seeds: seed of each row; None draws from PyTorch's generator.
    device: device of the logits.
    """
    temperature, top_k, top_p, min_p, penalty = float(sampling.temperature), *sampling[1:]
    if temperature < LEAST_TEMPERATURE:
        return lambda logits, rows: penalize_repetition(logits, rows, penalty).argmax(-1)
    generators = None if seeds is None else [torch.Generator().manual_seed(seed) for seed in seeds]

    def draw_uniform(rows: int) -> Float[Tensor, " B"]:
        if generators is None:
            return torch.rand(rows)
        return torch.cat([torch.rand(1, generator=generator) for generator in generators])

    def choose(logits: Float[Tensor, "B V"], rows: Int[Tensor, "B T"]) -> Int[Tensor, " B"]:
        logits = penalize_repetition(logits, rows, penalty)
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature
        logits = logits if top_k is None else keep_top_k(logits, top_k)
        logits = logits if top_p is None else keep_top_p(logits, top_p)
        logits = logits if min_p is None else keep_min_p(logits, min_p)
        # first token whose cumulative probability exceeds the uniform number; float64 guarantees that one does
        sums = logits.softmax(-1).double().cumsum(-1)
        return (sums <= draw_uniform(len(logits)).to(device).double()[:, None] * sums[:, -1:]).sum(-1)

    return choose


def keep_min_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Return logits with -inf for tokens less likely than p times the likeliest token of their row.

    logits: scores of the tokens.
    p: smallest probability of a token that is kept, as a fraction of the largest probability.

    Source: Nguyen et al., 2024, arXiv:2407.01082.
    """
    return logits.masked_fill((logits - logits.amax(-1, keepdim=True)).exp() < p, -torch.inf)


def keep_top_k(logits: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """Return logits with -inf for all except the k largest of each row, the first of equal ones.

    logits: scores of the tokens.
    k: number of logits to keep.
    """
    if k >= logits.shape[-1]:
        return logits
    least = logits.topk(k, sorted=False).values.amin(-1, keepdim=True)
    return _mask_below(logits, least, k - (logits > least).sum(-1, keepdim=True))


def keep_top_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Return logits with -inf for all except the fewest most likely tokens that reach probability p.

    The largest logit of each row always stays.

    logits: scores of the tokens.
    p: total probability to reach.
    """
    if p >= 1:
        return logits
    size, norm = min(FIRST, logits.shape[-1]), logits.logsumexp(-1, keepdim=True)
    while True:
        largest = logits.topk(size).values  # [B size], falling
        probability = (largest - norm).exp()
        count = ((probability.cumsum(-1) - probability) < p).sum(-1, keepdim=True)
        if size == logits.shape[-1] or bool((count < size).all()):
            break
        size = min(8 * size, logits.shape[-1])
    count = count.clamp_min(1)  # a p below the range of float32 compares as 0
    least = largest.take_along_dim(count - 1, -1)
    return _mask_below(logits, least, count - (logits > least).sum(-1, keepdim=True))


def _mask_below(logits: Float[Tensor, "B V"], least: Float[Tensor, "B 1"], equal: Int[Tensor, "B 1"]) -> Tensor:
    """Keep the logits above `least`, and the first `equal` of those that equal it; the others become -inf."""
    same = logits == least
    return logits.masked_fill((logits < least) | (same & (same.cumsum(-1) > equal)), -torch.inf)
