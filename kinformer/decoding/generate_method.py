"""The method `generate` of models, with the arguments of transformers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.core.checks import check_at_least, check_unused
from kinformer.core.keyword_hints import hint_keywords
from kinformer.core.model import Writer
from kinformer.core.quote import quote
from kinformer.decoding.generate import end_tokens
from kinformer.decoding.generate import generate as generate_tokens
from kinformer.decoding.prompt_rows import prompt_rows
from kinformer.models.seq2seq import Seq2Seq

NEW_TOKENS = 20  # new tokens by default, as in transformers
TOP_K = 50  # likeliest tokens to sample from by default, as in transformers


@hint_keywords
def generate(
    model: Writer,
    input_ids: Any = None,
    attention_mask: Any = None,
    *,
    max_new_tokens: int | None = None,
    max_length: int | None = None,
    do_sample: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    num_beams: int = 1,
    length_penalty: float | None = None,
    num_return_sequences: int = 1,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    prompt_lookup_num_tokens: int | None = None,
    seed: int | None = None,
    use_cache: bool = True,
) -> Int[Tensor, "B N"]:
    """Continue rows of tokens, as `generate` of transformers does.

    Choose it in code that was written for transformers; `kf.generate` has all options. The defaults are as in
    transformers, except for `length_penalty`. A generation_config.json gives only end tokens: pass its other settings
    as arguments. The result is the ids of the prompts and the new tokens, with `pad_token_id` after the end of a row.
    An encoder-decoder reads the ids as the source, and the result is the target with the tokens before it,
    `model.opening`.

        rows = model.generate(**tokenizer(prompts, padding=True, return_tensors="pt"), max_new_tokens=20)

    model: a model that predicts the next token, or an encoder-decoder.
    input_ids: token ids [B T], or lists of ids, which are padded on the left. Padding must be on the left, or for a
        source at either end.
    attention_mask: 0 at padding.
    max_new_tokens: largest number of new tokens, 20 by default.
    max_length: largest number of tokens of a row: prompt and new tokens, or a target with `model.opening`. Only without
        max_new_tokens.
    do_sample: True samples; False takes the likeliest token.
    temperature, top_k, top_p, min_p: as in `kf.generate`, only if do_sample; temperature is 1 by default, and top_k
        50. If top_k is 0, tokens are sampled from the whole vocabulary.
    repetition_penalty: as in `kf.generate`.
    num_beams: number of beams; 1 means no beam search.
    length_penalty: as in `kf.generate`, only for a beam search.
    num_return_sequences: number of samples of each row, or of its best rows of a beam search, at most num_beams.
    eos_token_id: id that ends a row, or several; a negative id ends no row. The default is `model.end`, or the ends of
        the tokenizer.
    pad_token_id: id after the end of a row and before a shorter prompt; by default the tokenizer's, else the
        first id that ends a row, else -1.
    prompt_lookup_num_tokens: `prompt_lookup` of `kf.generate`, only for the likeliest tokens of one row.
    seed: seed of the samples; None follows torch.manual_seed.
    use_cache: False reads the whole row again at each step.

    Errors: as in `kf.generate`; ValueError for arguments without effect.
    """
    if input_ids is None:
        raise ValueError("generate got no input_ids. Give token ids [B, T]")
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    _check_sampling(do_sample, num_beams, num_return_sequences, **settings)
    rows = prompt_rows(
        input_ids if attention_mask is None else {"input_ids": input_ids, "attention_mask": attention_mask}, model
    )
    copies = check_at_least("num_return_sequences", num_return_sequences, 1)
    rows = rows.repeat_interleave(copies if do_sample else 1, 0)
    is_pair = isinstance(model, Seq2Seq)
    stop = [eos_token_id] if isinstance(eos_token_id, int) else eos_token_id
    if pad_token_id is None:
        pad_token_id = _padding(model, end_tokens(model) if stop is None else stop)
    count = len(rows) * (1 if do_sample else copies)
    prefix = torch.tensor([model.opening]).expand(count, -1) if is_pair else _ids(input_ids, count, pad_token_id)
    steps = _new_tokens(max_new_tokens, max_length, prefix.shape[1], len(model.opening) - 1 if is_pair else 0)
    sampling = settings | {"temperature": 1.0 if temperature is None else temperature, "top_k": _top_k(top_k)}
    new = generate_tokens(
        model,
        None if is_pair else rows,
        steps,
        **(sampling if do_sample else {} if num_beams > 1 else {"temperature": 0}),
        repetition_penalty=repetition_penalty,
        beam=num_beams,
        best=1 if do_sample else copies,
        length_penalty=length_penalty,
        prompt_lookup=prompt_lookup_num_tokens,
        stop=stop,
        seed=seed,
        source=rows if is_pair else None,
        recompute=not use_cache,
    )
    new = new if is_pair else new[:, rows.shape[1] :]
    new = new[:, : int((new >= 0).any(0).sum())]  # up to the end of the longest row
    return torch.cat([prefix.to(new.device), new.masked_fill(new < 0, pad_token_id)], 1)


def _check_sampling(do_sample: bool, num_beams: int, num_return_sequences: int, **settings: float | None) -> None:
    """Raise ValueError for arguments that have no effect together."""
    if num_return_sequences > num_beams and not do_sample:
        raise ValueError(
            f"num_return_sequences={num_return_sequences} needs as many rows: got num_beams={num_beams} without "
            f"samples. Give num_beams={num_return_sequences} or do_sample=True"
        )
    if do_sample and num_beams > 1:
        raise ValueError(f"do_sample=True has no effect with num_beams={num_beams}. Leave one of them out")
    for name, value in settings.items():
        if value is not None and not do_sample:
            raise ValueError(
                f"{name}={quote(value)} has no effect with do_sample=False. Pass do_sample=True, or leave it out"
            )


def _top_k(top_k: int | None) -> int | None:
    """Return the number of tokens to sample from, as transformers reads it: 0 for all, None for the default."""
    return TOP_K if top_k is None else None if top_k == 0 else top_k


def _padding(model: Writer, ends: Any) -> int:
    """Return the tokenizer's id of padding, or the first id that ends a row; -1 if there is none."""
    token = model.tokenizer.special_token("pad_token") if isinstance(model.tokenizer, Tokenizer) else None
    if token is not None:
        return token
    ids = ends if isinstance(ends, list | tuple) else ()  # `kf.generate` refuses other values
    return next((end for end in ids if isinstance(end, int) and end >= 0), -1)


def _new_tokens(max_new_tokens: int | None, max_length: int | None, length: int, forced: int) -> int:
    """Return the largest number of tokens to generate after a prompt of `length`; `forced` ones count as new."""
    if max_new_tokens is not None:
        check_unused("max_new_tokens", max_length=(max_length, None))
        return max(max_new_tokens - forced, 0) if forced else max_new_tokens
    if max_length is None:
        return NEW_TOKENS - forced
    if max_length < length:
        raise ValueError(f"max_length={max_length} leaves no room: the prompt has {length} tokens. Give a larger one")
    return max_length - length


def _ids(ids: Any, count: int, padding: int) -> Int[Tensor, "B T"]:
    """Return the ids of the prompts, also where a mask is 0, repeated to `count` rows; `padding` in place of -1."""
    ids = prompt_rows(ids["input_ids"] if isinstance(ids, Mapping) else ids, None)
    return ids.masked_fill(ids < 0, padding).repeat_interleave(count // len(ids), 0)
