"""Text continuation: a trained model continues prompts token by token, and callers see each token."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from time import monotonic
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.core.mechanism import NoState
from kinformer.core.model import display_name
from kinformer.decoding.beam import length_norm
from kinformer.decoding.byte_tokenizer import begin_tokens, tokenizer_of_model
from kinformer.decoding.compiled_steps import CompiledSteps
from kinformer.decoding.generate import end_tokens, generate
from kinformer.decoding.layers_used import record_layers_used
from kinformer.decoding.pad_sequences import pad_sequences
from kinformer.decoding.prefill import PrefilledText
from kinformer.decoding.sampling import LENGTH_PENALTY, Stop
from kinformer.decoding.stop_at_text import stop_at_text
from kinformer.lab.data.batches import device_of

INSTEAD = {  # advice for models that neither continue nor fill in text
    "series": "forecast with `kinformer forecast DIR --data series=FILE.csv --out next.csv`",
    "labelled": 'label texts with `kinformer classify DIR --text "a wonderful film"`',
    "multitask": 'label texts with `kinformer classify DIR --text "a wonderful film"`',
    "trajectories": "let it act with `kinformer play DIR --env ID`",
    "environments": "let it act with `kinformer play DIR --env ID`",
}
FILL = 'fill them in with `kinformer fill DIR --text "the wh_le"`'


@dataclass(frozen=True)
class WritingSettings:
    """Settings for continuing a text: sampling, or beam search if `beam` is above 1.

    temperature, top_k, top_p, min_p, repetition_penalty: settings of sampling, as in `generate`.
    beam: number of beams; 1 means sampling.
    best: number of texts that beam search returns for each prompt.
    length_penalty: length penalty of beam search.
    seed: seed of the first prompt. Each later prompt has the next number as its seed, so its text does not depend on
        the other prompts.
    stop: a text ends after these bytes.
    prompt_lookup: number of tokens that prompt lookup proposes at a time; None for none.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    beam: int = 1
    best: int = 1
    length_penalty: float | None = None
    seed: int | None = None
    stop: bytes | None = None
    prompt_lookup: int | None = None


@dataclass
class Continuation:
    """The continuation of one prompt.

    tokens: its tokens.
    text: their bytes, up to the end of the stop text.
    log_probability: its log-probability. In a beam search it includes the repetition penalty.
    score: for beam search, the log-probability over the divisor of the length penalty; None for sampling.
    ended: True if it ended before the limit of tokens.
    layers: number of layers that each token used, for a model with early exits; empty for beam search and for prompt
        lookup.
    """

    tokens: list[int] = field(default_factory=list)
    text: bytes = b""
    log_probability: float = 0.0
    score: float | None = None
    ended: bool = False
    layers: list[int] = field(default_factory=list)


def has_state(model: Any, length: int) -> bool:
    """Return True if a model has a decoding state; without one it reads the whole text for each new token.

    model: the model.
    length: number of tokens of the prompt and the continuation.

    Errors: ValueError if the model does not predict the next token. Errors of its `start` are raised too.
    """
    if not model.predicts_next:
        masked = model.reads == "masked"
        does = "fills in masked bytes" if masked else f"reads {model.reads} data"
        instead = FILL if masked else INSTEAD.get(model.reads)
        advice = f"{instead}, or use" if instead else "use"
        raise ValueError(
            f"this {display_name(model)} {does} and cannot continue a text; {advice} a causal member like gpt"
        )
    try:
        model.start(1, length if model.window is None else min(length, model.window))
    except NoState:
        return False
    return True


def rows_of(
    model: Any, prompts: Sequence[bytes], sources: Sequence[bytes] | None, reading: PrefilledText | None
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B S"] | None]:
    """Return the prompts, and the sources if any, as rows of tokens, padded on the left.

    model: the model, for its tokenizer.
    prompts: the prompts. They follow the `begin_tokens`, or the begin token of a target, or the last token of a
        prefilled text.
    sources: the sources, or None.
    reading: the text that the model has already read (prefilled), or None.
    """
    tokenizer = tokenizer_of_model(model)
    encode = tokenizer.encode
    first = model.opening if sources is not None else [] if reading is None else [int(reading.last)]
    rows = [[*first, *encode(prompt)] for prompt in prompts]
    rows = rows if first else [[*begin_tokens(model, tokenizer, row), *row] for row in rows]
    begun = pad_sequences(rows, front=True)
    return begun, None if sources is None else pad_sequences([encode(prompt) for prompt in sources], front=True)


def last_token(spelled: Any, prompt: bytes, reading: PrefilledText | None) -> list[int]:
    """Return the last token before a continuation, in a list, which is empty for the start of a text.

    spelled: the tokenizer of the model.
    prompt: the prompt.
    reading: the text that the model has already read (prefilled), or None.
    """
    return spelled.encode(prompt)[-1:] or ([] if reading is None else [int(reading.last)])


def write_all(
    model: Any,
    prompts: Sequence[bytes],
    tokens: int,
    settings: WritingSettings,
    *,
    sources: Sequence[bytes] | None = None,
    reading: PrefilledText | None = None,
    on_tokens: Callable[[list[int]], None] = lambda new: None,
    look: Callable[[int], None] = lambda tokens: None,
    compile: CompiledSteps | None = None,
) -> tuple[list[Continuation], float]:
    """Continue each prompt; return the continuations and the milliseconds of a step.

    A beam search returns `settings.best` continuations of each prompt, which follow each other, the best first.
    The time is the median over the steps, one for each new token; for a beam search it is the mean. A model without a
    state reads the whole text again for each token.

    model: the model.
    prompts: the prompts.
    tokens: largest number of new tokens.
    settings: settings of the continuation.
    sources: for a model of pairs, the source of each prompt.
    reading: the text that the model has already read (prefilled) and that all prompts continue, or None.
    on_tokens: called at each step with the new tokens, -1 for a row that has ended.
    look: called at each step of a beam search with the number of new tokens so far.
    compile: compiled steps of the model; None runs it uncompiled. Layers of tokens are not recorded with them.

    Errors: ValueError if the model does not predict the next token. Errors of `generate` are raised too.
    """
    spelled = tokenizer_of_model(model)
    prompted, source = rows_of(model, prompts, sources, reading)
    recompute = reading is None and not has_state(model, prompted.shape[1] + tokens)
    if recompute and compile is not None:
        raise ValueError(
            f"{display_name(model)} has no decoding state, so it cannot decode compiled. Leave compile out"
        )
    continuations, times = [Continuation() for _ in range(len(prompts) * settings.best)], list[float]()

    def record(new: Tensor, likely: Tensor) -> None:
        for continuation, token, log_probability in zip(continuations, new.tolist(), likely.tolist(), strict=True):
            if token >= 0:
                continuation.log_probability += log_probability
        on_tokens(new.tolist())
        times.append(monotonic())

    choices = asdict(settings) | {"stop": None if settings.stop is None else stop_at_text(spelled, settings.stop)}
    if settings.beam > 1:
        choices["stop"] = _stop_and_report(choices["stop"], look)
    began = monotonic()
    with record_layers_used(model) if compile is None else nullcontext(list[Tensor]()) as took:
        rows = generate(
            model,
            prompted.to(device_of(model)),
            tokens,
            **choices,
            source=source,
            state=None if reading is None else reading.times(len(prompts)),
            recompute=recompute,
            on_tokens=record,
            compile=compile or False,
        )
    ends = end_tokens(model)
    layers = (
        torch.stack(took, 1).long().tolist()
        if took and settings.beam == 1 and settings.prompt_lookup is None
        else [[] for _ in continuations]
    )
    written = rows[:, prompted.shape[1] :].tolist()
    penalty = LENGTH_PENALTY if settings.length_penalty is None else settings.length_penalty
    started = [prompt for prompt in prompts for _ in range(settings.best)]
    for prompt, continuation, row, left in zip(started, continuations, written, layers, strict=True):
        new = [token for token in row if token >= 0]
        if settings.beam > 1:
            continuation.score = continuation.log_probability / length_norm(len(new), penalty)
        continuation.tokens = [token for token in new if token not in ends]
        continuation.layers = left[: len(continuation.tokens)]
        text = spelled.decode(continuation.tokens, last_token(spelled, prompt, reading))
        cut = -1 if settings.stop is None else text.find(settings.stop)
        continuation.text = text if cut < 0 or settings.stop is None else text[: cut + len(settings.stop)]
        continuation.ended = cut >= 0 or len(continuation.tokens) < len(new)
    if settings.beam > 1:  # a beam search reports all tokens at the end
        return continuations, 1000 * (monotonic() - began) / max(len(times), 1)
    return continuations, 1000 * median([after - before for before, after in pairwise(times)] or [0.0])


def _stop_and_report(stop: Stop | None, look: Callable[[int], None]) -> Stop:
    """Return the same stop, if any; `look` receives the number of tokens at each step."""

    def ends(new: Int[Tensor, "B N"]) -> Bool[Tensor, " B"]:
        look(new.shape[1])
        return torch.zeros(len(new), dtype=torch.bool, device=new.device) if stop is None else stop(new)

    return ends
