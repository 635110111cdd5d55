"""generate: continue prompts with any model that has `start` and `logits`, by sampling or beam search."""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor, nn

from kinformer.core.bias import Bias
from kinformer.core.checks import check_flag, check_unused, check_whole_between, check_whole_number
from kinformer.core.eval_mode import evaluating
from kinformer.core.keyword_hints import hint_keywords
from kinformer.core.kv_cache import widen_caches
from kinformer.core.layer import State
from kinformer.core.position import Position, Rotation
from kinformer.core.quote import quote
from kinformer.core.state import leaves
from kinformer.core.warn import warn
from kinformer.decoding.compiled_steps import CompiledSteps
from kinformer.decoding.decoding_method import DecodingMethod, make_method
from kinformer.decoding.generation_state import GenerationState
from kinformer.decoding.prompt_lookup import check_lookup
from kinformer.decoding.prompt_rows import prompt_rows
from kinformer.decoding.sampling import Seed, Stop, TokensCallback, checked_stop
from kinformer.models.support.sliding_reader import SlidingReader, SlidingState, must_slide
from kinformer.nn.attention import Attention
from kinformer.nn.mechanisms.sink_softmax import SinkSoftmax
from kinformer.nn.mechanisms.softmax import Softmax

SEEDS = -(2**63), 2**64 - 1  # range of seeds that PyTorch accepts
Prompt = Shaped[Tensor, "*B T"] | Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Any]


@hint_keywords
def generate(
    model: Any,
    tokens: Prompt | None,
    steps: int,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    beam: int = 1,
    best: int = 1,
    length_penalty: float | None = None,
    prompt_lookup: int | None = None,
    stop: int | Sequence[int] | Stop | None = None,
    attention_mask: Shaped[Tensor, "*B T"] | Sequence[Any] | None = None,
    seed: Seed = None,
    state: State | None = None,
    source: Int[Tensor, "R S"] | None = None,
    recompute: bool = False,
    on_tokens: TokensCallback | None = None,
    compile: bool | CompiledSteps = False,
) -> Int[Tensor, "B N"]:
    """Continue each prompt by up to `steps` new tokens, by sampling or by beam search.

    The result is [B, T + steps], with -1 after the end of a row that has ended, and at padding. A tokenizer knows no
    -1: decode each row without it.

        rows = kf.generate(model, tokenizer(prompts, padding=True, return_tensors="pt"), 20)
        texts = [tokenizer.decode(row[row >= 0]) for row in rows]

    The model runs in eval mode, without
    gradients, and its mode is restored. When the learned positions of a model are full, it reads the last half of its
    window again from position 0, and continues.

    model: a language model, or a sequence-to-sequence model, which also has `opening` and `end`.
    tokens: token ids of the prompts, padded with -1 on the left if their lengths differ. A list of ids, or a tensor
        [T], is one prompt; a list of lists is a batch. A dict of `input_ids` and `attention_mask` works too. None
        starts from `model.opening`, the ids before every target, which are not returned.
    steps: largest number of new tokens.
    temperature: tokens are sampled from softmax(logits / temperature); 0 takes the most likely token, the first of
        equal ones. The default is 1 with top_k, top_p or min_p. If none of the four is given, temperature is 0.6 and
        top_p is 0.9, as in the commands `kinformer generate` and `kinformer compare`.
    top_k: number of most likely tokens to sample from.
    top_p: tokens are sampled from the smallest set of likeliest tokens whose probabilities sum to at least top_p.
    min_p: tokens are sampled from those that are at least min_p times as probable as the most likely one.
    repetition_penalty: factor against the tokens that a row already has, prompt included. Their positive logits are
        divided by it and their negative ones multiplied, before all other options. A beam search multiplies
        log-probabilities by it. Tokens that only `state` has read do not count.
    beam: number of rows that beam search keeps for each prompt at each step; 1 samples instead. The search returns the
        best row, ended or unfinished.
    best: number of rows that a beam search returns for each prompt, at most `beam`. They follow each other, the best
        first. The sums of their log-probabilities, from `on_tokens`, give their scores.
    length_penalty: exponent of the score of a row with n new tokens, log-probability / ((5 + n) / 6)**length_penalty. 0
        favours short rows, because each token lowers the sum. The default is 0.6, as in Vaswani et al. Only for `beam`
        above 1.
    prompt_lookup: largest number of tokens that prompt lookup proposes at a time, such as 10. Tokens that followed the
        last tokens earlier in the row are checked in one pass of the model. The tokens stay the same, but rounding
        may decide differently between nearly equal logits. Only for one prompt, temperature=0 and a model with a state.
    stop: token id that ends a row, or several; a negative id ends no row. The default is `model.end`, or else the
        tokens `model.tokenizer.ends`. Or a function from the new tokens [B, N] to the rows that have ended; the
        default tokens then end rows too.
    attention_mask: False or 0 at the tokens of the prompts that are padding, as a tokenizer of transformers returns it.
        They are not read. The padding must be on the left (`padding_side="left"`).
    seed: seed of the first row; each further row has the next number as its seed, as in `kinformer generate`. A row is
        then sampled as it would be without the other rows. A list has the seed of each row. With None, the random
        numbers follow `torch.manual_seed`.
    state: decoding state to continue from; do not use it again after the call. None starts a new one.
    source: tokens of the source of a sequence-to-sequence model; the model encodes them once.
    recompute: True reads the whole row again at each step, for models without a decoding state.
    on_tokens: called at each step with the new tokens [B], -1 for rows that have ended, and their log-probabilities. A
        beam search calls it after the search.
    compile: True runs each step as one compiled graph, after a compilation of twenty seconds to minutes.
        Later calls with the model use the graph again, for rows of similar length. Or a `CompiledSteps` of the model.

    Errors: ValueError for invalid arguments; NoState from a model that cannot decode; TypeError for a model without
    `start` and `logits`, and for a prompt that is not a tensor. A UserWarning is given beyond the length that the model
    was trained on.
    Source: top-k: Fan et al., 2018, arXiv:1805.04833; top-p: Holtzman et al., 2019, arXiv:1904.09751; min-p: Nguyen et
    al., 2024, arXiv:2407.01082; repetition penalty: Keskar et al., 2019, arXiv:1909.05858; length penalty: Wu et al.,
    2016, arXiv:1609.08144, section 7; prompt lookup: Saxena, 2023,
    https://github.com/apoorvumang/prompt-lookup-decoding.
    """
    method = make_method(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        beam=beam,
        best=best,
        length_penalty=length_penalty,
        prompt_lookup=prompt_lookup,
    )
    if attention_mask is not None:
        tokens = {"input_ids": tokens, "attention_mask": attention_mask}
    task = prepare(model, tokens, steps, method, stop, seed, state, source, recompute, compile)
    with evaluating(model):
        rows = method.continue_rows(task.reader, task.text, steps, task.ends, seed, on_tokens)
    return rows if tokens is not None else rows[:, task.text.prompt :]


class GenerationTask(NamedTuple):
    """Checked inputs of `generate`: what reads, the prompts, and the function that ends rows.

    reader: the model, or a sliding window over it.
    text: prompts and the decoding state.
    ends: function from the new tokens to the rows that have ended; None if no row ends.
    """

    reader: Any
    text: GenerationState
    ends: Stop | None


def prepare(
    model: Any,
    tokens: Prompt | None,
    steps: int,
    method: DecodingMethod,
    stop: Any,
    seed: Seed,
    state: State | None,
    source: Int[Tensor, "R S"] | None,
    recompute: bool,
    compile: bool | CompiledSteps,
) -> GenerationTask:
    """Return the task that arguments of `generate` describe, after their checks.

    method: choice of tokens.
    model, tokens, steps, stop, seed, state, source, recompute, compile: arguments of `generate`.

    Errors: the errors of `generate`.
    """
    _check(steps, state, recompute)
    _refuse_seeds(seed)
    if isinstance(compile, CompiledSteps):
        if compile.model is not model:
            raise ValueError("compile= has the steps of another model; give CompiledSteps(model), or True")
    else:
        check_flag("compile", compile)
    if compile:
        check_unused("compile=True", recompute=(recompute, False), prompt_lookup=(method.prompt_lookup, None))
    if not callable(getattr(model, "start", None)) or not callable(getattr(model, "logits", None)):
        raise TypeError(
            f"{type(model).__name__} cannot generate: it has no start() and logits(); give an LM or a Seq2Seq"
        )
    prompt, padded = _prompt(model, tokens, source, state, seed)
    if method.prompt_lookup is not None:
        check_lookup(model, method.prompt_lookup, len(prompt), recompute)
    given = stop if stop is None or callable(stop) else _stop_tokens(stop, model)
    with evaluating(model):
        reader, text = _begin(model, prompt, padded, steps, state, source, recompute, compile)
    return GenerationTask(reader, text, _ends(given, end_tokens(model)))


def _begin(
    model: Any,
    prompt: Int[Tensor, "B T"],
    padded: bool,
    steps: int,
    state: State | None,
    source: Int[Tensor, "R S"] | None,
    recompute: bool,
    compile: bool | CompiledSteps,
) -> tuple[Any, GenerationState]:
    """Return the reader, a model or a sliding window over it, and the text with room for new tokens."""
    device = next(model.parameters()).device
    length = prompt.shape[1] + steps
    window = _sliding_window(model, _tokens_read(state) + length)
    if isinstance(state, SlidingState):
        window = cast(int, model.window)
    base: Any = compile if isinstance(compile, CompiledSteps) else CompiledSteps(model) if compile else model
    reader = base if window is None else SlidingReader(base, window)
    inputs: dict[str, Any] = {} if source is None else {"source": source.to(device)}
    full = state is None and not recompute and not padded and window is None
    capacity = max(length - 1, 1)  # the last new token is not read
    if state is not None:
        state = widen_caches(state, base.start(1, _tokens_read(state) + capacity if window is None else window))
        state = state if window is None or isinstance(state, SlidingState) else reader.continue_from(state)
    elif not recompute:
        state = reader.start(len(prompt), capacity)
    columns = prompt.shape[1]
    return reader, GenerationState(prompt.to(device, torch.long), columns, state, inputs, columns, steps, full)


def end_tokens(model: Any) -> tuple[int, ...]:
    """Return the ids that end a row by default: `model.end`, or the ends of the model's tokenizer.

    model: the model.
    """
    end = getattr(model, "end", None)
    if end is not None:
        return (end,)
    ends = getattr(getattr(model, "tokenizer", None), "ends", ()) or getattr(model, "foreign_ends", None) or ()
    vocab = getattr(model, "vocab", None)
    return tuple(token for token in ends if vocab is None or 0 <= token < vocab)  # files may name other numbers


def _ends(stop: tuple[int, ...] | Stop | None, usual: tuple[int, ...]) -> Stop | None:
    """Return the function that tells which rows have ended; None if no row ever ends.

    A tuple of ids replaces the usual ids; a function adds to them.
    """
    ids, further = (stop, None) if isinstance(stop, tuple) else (usual, None if stop is None else checked_stop(stop))
    if not ids:
        return further

    def has_ended(new: Int[Tensor, "B N"]) -> Bool[Tensor, " B"]:
        ended = new[:, -1] == ids[0] if further is None else further(new)
        return reduce(torch.Tensor.logical_or, (new[:, -1] == end for end in ids), ended)

    return has_ended


# Arguments ------------------------------------------------------------------------------------------------------------


def _stop_tokens(stop: Any, model: Any) -> tuple[int, ...]:
    """Return the ids that end a row, from `stop`; ValueError for other values, and for ids the model does not have."""
    ids = stop if isinstance(stop, list | tuple) and stop else [stop]
    for token in ids:
        if not isinstance(token, int):
            advice = ". `kinformer generate RUN --stop TEXT` takes a text" if isinstance(stop, str | bytes) else ""
            raise ValueError(
                f"wrong stop: got {quote(stop)}, expected a token id, several, or a function of the new tokens [B, N] "
                f"that says which rows have ended{advice}"
            )
        check_whole_between("stop", token, -(2**63), 2**63 - 1)
        if (vocabulary := _vocabulary_size(model)) is not None and token >= vocabulary:
            raise ValueError(
                f"stop={token} has no effect: got token id {token}, expected 0 to {vocabulary - 1}. Leave it out, or "
                "pass such an id"
            )
    return tuple(ids)


def _refuse_seeds(seed: Seed) -> None:
    """Check that `seed` is an integer that PyTorch accepts, a sequence of them, or None."""
    if seed is None or isinstance(seed, int):
        seeds: Sequence[Any] = [] if seed is None else [seed]
    elif isinstance(seed, Sequence) and not isinstance(seed, str):
        seeds = seed
    else:
        raise ValueError(f"seed={quote(seed)}: give a whole number, or one for each row")
    for item in seeds:
        check_whole_between("seed", item, *SEEDS)


def _check(steps: int, state: State | None, recompute: bool) -> None:
    if check_whole_number("steps", steps) < 0:
        raise ValueError(f"steps={steps} is negative; give the number of tokens to generate")
    if recompute and state is not None:
        raise ValueError("recompute=True reads the whole row at each step and cannot use state=; drop one of the two")


def _prompt(
    model: Any, tokens: Prompt | None, source: Int[Tensor, "R S"] | None, state: State | None, seed: Seed
) -> tuple[Int[Tensor, "B T"], bool]:
    """Return the prompt, and whether it contains padding."""
    if tokens is None:
        opening = getattr(model, "opening", None)
        if source is None or opening is None:
            raise ValueError("tokens=None needs source= and a model with a begin token; give a prompt [B, T]")
        return torch.tensor([opening]).expand(len(source), -1), False
    if source is None and state is None and callable(getattr(model, "encode", None)):
        raise ValueError(
            f"{type(model).__name__} got no source; give source=ids [R, S], with tokens=None to begin the target"
        )
    tokens = prompt_rows(tokens, model)
    if (vocabulary := _vocabulary_size(model)) is not None and (max_id := int(tokens.max())) >= vocabulary:
        raise ValueError(
            f"the prompt has an unknown token id: got {max_id}, expected 0 to {vocabulary - 1}. Encode it with the "
            "model's tokenizer"
        )
    ends = (tokens[:, -1] < 0).nonzero()[:, 0].tolist()
    if ends:
        raise ValueError(
            f"row {ends[0]} of the prompt ends with padding; pad on the left, as a tokenizer of transformers does with "
            'padding_side="left"'
        )
    seeds = None if isinstance(seed, int) or seed is None else len(seed)
    for name, rows in (
        ("source", None if source is None else len(source)),
        ("state", _row_count(state)),
        ("seed", seeds),
    ):
        if rows not in (None, len(tokens)):
            raise ValueError(f"the prompt has {len(tokens)} rows, but the {name} has {rows}; give both the same number")
    return tokens, bool((tokens < 0).any())


def _vocabulary_size(model: Any) -> int | None:
    """Return the size of a model's vocabulary; None if it is unknown."""
    embedding = getattr(model, "embedding", None)
    return embedding.num_embeddings if isinstance(embedding, nn.Embedding) else None


def _tokens_read(state: State | None) -> int:
    """Return the number of tokens that the longest row of a state has read."""
    positions = [] if state is None else [leaf for name, leaf in leaves(state) if name == "now" and len(leaf)]
    return max((int(leaf.max()) for leaf in positions), default=0)


def _row_count(state: State | None) -> int | None:
    all_leaves = [] if state is None else leaves(state)
    return len(all_leaves[0][1]) if all_leaves else None


def _sliding_window(model: Any, length: int) -> int | None:
    """Return the window of a model that must slide at this length, else None; warn beyond the training length."""
    if must_slide(model, length - 1):
        return cast(int, model.window)
    if is_beyond_training(model, length):
        warn(
            f"got {length} tokens, but the model was trained on rows of {model.trained_length}: text beyond that may "
            "make no sense; generate fewer, or train with a larger length"
        )
    return None


def is_beyond_training(model: Any, length: int) -> bool:
    """Return True if a text is longer than the training rows of a model that reads longer texts less well.

    model: any model.
    length: number of tokens of the text.
    """
    trained = getattr(model, "trained_length", None)
    free = getattr(model, "window", None) is None and not getattr(model, "lanes", False)
    if trained is None or not free or length <= trained:
        return False
    return not (_has_endless_positions(model) or _reads_trained_distances(model, trained))


def _reads_trained_distances(model: nn.Module, trained: int) -> bool:
    """Return True if no layer reads a distance beyond the trained length, as after the conversion `window`.

    A vector for each absolute position still leaves the trained positions, however near the keys are.
    """
    if any(isinstance(part, Position) for part in model.modules()):
        return False
    layers = [part for part in model.modules() if isinstance(part, Attention)]
    parts = [part for layer in layers for part in getattr(layer.mechanism, "parts", [layer.mechanism])]
    return bool(parts) and all(
        part.last <= trained if isinstance(part, SinkSoftmax) else _reach(part) <= trained for part in parts
    )


def _reach(mechanism: nn.Module) -> float:
    """Return the distance to the farthest key of a mechanism with a pattern."""
    return mechanism.pattern.reach()[0] if type(mechanism) is Softmax else math.inf


def _has_endless_positions(model: nn.Module) -> bool:
    """Return True if the model encodes order only by biases that work equally well at any length."""
    biases = [part for part in model.modules() if isinstance(part, Bias)]
    placed = any(isinstance(part, Position | Rotation) for part in model.modules())
    return bool(biases) and not placed and all(bias.endless for bias in biases)
