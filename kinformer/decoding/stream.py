"""stream: continue one prompt, and yield each new token as soon as it is chosen."""

from collections.abc import Iterator, Sequence
from typing import Any

from jaxtyping import Int
from torch import Tensor

from kinformer.core.eval_mode import evaluating
from kinformer.core.keyword_hints import hint_keywords
from kinformer.core.layer import State
from kinformer.decoding.compiled_steps import CompiledSteps
from kinformer.decoding.decoding_method import DecodingMethod, make_method
from kinformer.decoding.generate import GenerationTask, Prompt, prepare
from kinformer.decoding.sampling import Stop


@hint_keywords
def stream(
    model: Any,
    tokens: Prompt | None,
    steps: int,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    prompt_lookup: int | None = None,
    stop: int | Sequence[int] | Stop | None = None,
    seed: int | None = None,
    state: State | None = None,
    source: Int[Tensor, "1 S"] | None = None,
    recompute: bool = False,
    compile: bool | CompiledSteps = False,
) -> Iterator[int]:
    """Continue one prompt by up to `steps` new tokens, and yield each token as soon as it is chosen.

    Choose it to show a text while it grows; `generate` returns the same tokens at once, for several prompts too. The
    token that ends the text is yielded, as `generate` returns it.

        for token in kf.stream(model, prompt, 100, temperature=0.8, seed=0):
            print(bytes([token]).decode(errors="replace"), end="", flush=True)

    With a tokenizer, `speak = model.tokenizer.speaker(prompt[-1:])` gives the next piece of text for each token,
    `speak(token)`. The model is in eval mode only while it computes a token, so it may be used between two tokens. All
    arguments are checked before the first token. Beam search is left out, because it knows no token before its end.

    model: a language model, or a sequence-to-sequence model.
    tokens: token ids of one prompt, or None for the begin token of a target, as in `generate`.
    steps: largest number of new tokens.
    temperature, top_k, top_p, min_p, repetition_penalty, prompt_lookup, stop, seed: as in `generate`.
    state, source, recompute, compile: as in `generate`.

    Errors: the errors of `generate`; ValueError for several prompts.
    """
    method = make_method(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        prompt_lookup=prompt_lookup,
    )
    task = prepare(model, tokens, steps, method, stop, seed, state, source, recompute, compile)
    if (rows := len(task.text.rows)) > 1:
        raise ValueError(
            f"stream continues one prompt: got {rows} rows, expected 1. Use generate(..., on_tokens=...) for several"
        )
    return _new_tokens(model, task, steps, method, seed)


def _new_tokens(
    model: Any, task: GenerationTask, steps: int, method: DecodingMethod, seed: int | None
) -> Iterator[int]:
    """Yield the new tokens; the model leaves eval mode before each of them."""
    rows_after_steps = method.steps(task.reader, task.text, steps, task.ends, seed, None)
    while True:
        with evaluating(model):
            rows = next(rows_after_steps, None)
        if rows is None:
            return
        yield int(rows[0, -1])
