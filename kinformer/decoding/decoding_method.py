"""DecodingMethod: the way in which `generate` chooses tokens, by sampling, greedily or by beam search."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor

from kinformer.core.checks import check_at_least, check_finite_number, check_unused, check_whole_number
from kinformer.decoding.beam import search
from kinformer.decoding.generation_state import GenerationState, pad_rows
from kinformer.decoding.prompt_lookup import lookup_steps
from kinformer.decoding.sampling import (
    LENGTH_PENALTY,
    Sampling,
    Seed,
    Stop,
    TokensCallback,
    make_sampler,
    row_seeds,
    sample_steps,
)

LARGEST_PENALTY = 40  # for ten million tokens, ((5 + n) / 6)**length_penalty overflows a float beyond it


class DecodingMethod(NamedTuple):
    """Choice of tokens: sampling, or beam search if `beam` is above 1.

    sampling: options of sampling. A beam search reads only the repetition penalty.
    beam, best, length_penalty, prompt_lookup: as in `generate`.
    """

    sampling: Sampling
    beam: int
    best: int
    length_penalty: float
    prompt_lookup: int | None

    def check(self) -> None:
        """Raise ValueError for invalid numbers."""
        self.sampling.check()
        beam, length_penalty = self.beam, self.length_penalty
        check_whole_number("beam", beam), check_finite_number("length_penalty", length_penalty)
        if beam < 1:
            raise ValueError(f"beam={beam} keeps no row; give 1 to sample, or more for beam search")
        if self.prompt_lookup is not None:
            check_at_least("prompt_lookup", self.prompt_lookup, 1)
        if check_at_least("best", self.best, 1) > beam:
            raise ValueError(
                f"best={self.best} needs a wider beam search: got beam={beam}, expected {self.best} or more. Give "
                f"beam={self.best}, or leave best out"
            )
        if not 0 <= length_penalty <= LARGEST_PENALTY:
            raise ValueError(
                f"length_penalty={length_penalty} is not a number from 0 to {LARGEST_PENALTY}; 0 favours short rows"
            )

    def continue_rows(
        self,
        reader: Any,
        text: GenerationState,
        steps: int,
        ends: Stop | None,
        seed: Seed,
        on_tokens: TokensCallback | None,
    ) -> Int[Tensor, "B N"]:
        """Return the rows with up to `steps` new tokens.

        reader: model with `logits`.
        text: prompts and the model's decoding state.
        steps: largest number of new tokens.
        ends: function from the new tokens to the rows that have ended; None if no row ends.
        seed: seed of the first row, the seeds of all rows, or None.
        on_tokens: called at each step with the new tokens and their log-probabilities.
        """
        if self.beam > 1:
            penalty = self.sampling.repetition_penalty
            return search(reader, text, steps, self.beam, self.best, ends, self.length_penalty, penalty, on_tokens)
        rows = text.rows
        for longer in self.steps(reader, text, steps, ends, seed, on_tokens):
            rows = longer
        return pad_rows(rows, text.rows.shape[1] + steps)

    def steps(
        self,
        reader: Any,
        text: GenerationState,
        steps: int,
        ends: Stop | None,
        seed: Seed,
        on_tokens: TokensCallback | None,
    ) -> Iterator[Int[Tensor, "B N"]]:
        """Yield the rows after each new token, without a beam search; `continue_rows` describes the arguments."""
        choose = make_sampler(self.sampling, row_seeds(seed, len(text.rows)), text.rows.device)
        if self.prompt_lookup is not None:
            return lookup_steps(reader, text, steps, ends, choose, self.prompt_lookup, on_tokens)
        return sample_steps(reader, text, steps, ends, choose, on_tokens)


def make_method(
    *,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float | None,
    prompt_lookup: int | None,
    beam: int = 1,
    best: int = 1,
    length_penalty: float | None = None,
) -> DecodingMethod:
    """Return the method that arguments of `generate` describe.

    temperature=0 is allowed with a beam, because a beam draws nothing either.

    temperature, top_k, top_p, min_p, repetition_penalty: arguments of `generate`.
    beam, best, length_penalty, prompt_lookup: arguments of `generate`.

    Errors: ValueError for invalid numbers, and for arguments that have no effect together.
    """
    sampling = Sampling.with_defaults(temperature, top_k, top_p, min_p, repetition_penalty)
    norm = LENGTH_PENALTY if length_penalty is None else length_penalty
    method = DecodingMethod(sampling, beam, best, norm, prompt_lookup)
    method.check()
    chosen = Sampling(temperature or 0.0, top_k, top_p, min_p)
    if beam > 1:
        why = f"beam={beam}, which does not sample"
        check_unused(why, temperature=(temperature or None, None))
        check_unused(f"beam={beam}", prompt_lookup=(prompt_lookup, None))
        chosen.refuse_truncation(why)
    else:
        check_unused("beam=1", length_penalty=(length_penalty, None))
    if temperature == 0:
        chosen.refuse_truncation("temperature=0, which takes the most probable token")
    if prompt_lookup is not None and sampling.temperature != 0:
        raise ValueError(
            f"prompt_lookup={prompt_lookup} gives the tokens of greedy decoding: got temperature="
            f"{sampling.temperature}, expected 0. Give temperature=0, or leave prompt_lookup out"
        )
    return method
