"""The method `generate` of models, with the arguments and defaults of transformers."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.core.checks import check_at_least, check_unused
from kinformer.core.keyword_hints import hint_keywords
from kinformer.core.model import Writer
from kinformer.decoding.generate import end_tokens
from kinformer.decoding.generate import generate as generate_tokens
from kinformer.decoding.prompt_rows import prompt_rows
from kinformer.models.seq2seq import Seq2Seq

NEW_TOKENS = 20  # new tokens by default, as in transformers


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
    num_beams: int = 1,
    length_penalty: float | None = None,
    num_return_sequences: int = 1,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    seed: int | None = None,
    use_cache: bool = True,
) -> Int[Tensor, "B N"]:
    """Continue rows of tokens, as `generate` of transformers does.

    Choose it in code that was written for transformers; `kf.generate` has all options. The result is the given ids and
    the new tokens, with `pad_token_id` after the end of a row. An encoder-decoder reads the ids as the source, and the
    result is the target with the tokens before it, `model.opening`.

        rows = model.generate(**tokenizer(prompts, padding=True, return_tensors="pt"), max_new_tokens=20)

    model: a model that predicts the next token, or an encoder-decoder.
    input_ids: token ids [B T]; padding must be on the left, or for a source at either end.
    attention_mask: 0 at padding.
    max_new_tokens: largest number of new tokens, 20 by default.
    max_length: largest number of tokens of a row: prompt and new tokens, or a target with `model.opening`. Only without
        max_new_tokens.
    do_sample: True samples; False takes the likeliest token.
    temperature, top_k, top_p: as in `kf.generate`, only if do_sample; temperature is 1 by default.
    num_beams: number of beams; 1 means no beam search.
    length_penalty: as in `kf.generate`, only for a beam search.
    num_return_sequences: number of samples of each row, only if do_sample.
    eos_token_id: id that ends a row, or several; a negative id ends no row. By default `model.end`, or the ends of the
        tokenizer.
    pad_token_id: id after the end of a row; by default the tokenizer's, or else the first id that ends a row.
    seed: seed of the samples; None follows torch.manual_seed.
    use_cache: False reads the whole row again at each step.

    Errors: as in `kf.generate`; ValueError for arguments without effect.
    """
    if input_ids is None:
        raise ValueError("generate got no input_ids. Give token ids [B, T]")
    if num_return_sequences > 1 and (num_beams > 1 or not do_sample):
        raise ValueError(
            f"num_return_sequences={num_return_sequences} has no effect: expected samples. Give do_sample=True, "
            "num_beams=1"
        )
    if do_sample and num_beams > 1:
        raise ValueError(f"do_sample=True has no effect with num_beams={num_beams}. Leave one of them out")
    if not do_sample:
        check_unused("do_sample=False", temperature=(temperature, None), top_k=(top_k, None), top_p=(top_p, None))
    rows = prompt_rows(
        input_ids if attention_mask is None else {"input_ids": input_ids, "attention_mask": attention_mask}, model
    ).repeat_interleave(check_at_least("num_return_sequences", num_return_sequences, 1), 0)
    is_pair = isinstance(model, Seq2Seq)
    if max_new_tokens is not None:
        check_unused("max_new_tokens", max_length=(max_length, None))
    elif max_length is not None:
        given_tokens = len(model.opening) if is_pair else rows.shape[1]
        if max_length < given_tokens:
            raise ValueError(
                f"max_length={max_length} leaves no room: the prompt has {given_tokens} tokens. Give a larger one"
            )
        max_new_tokens = max_length - given_tokens
    if is_pair and max_new_tokens is not None and max_length is None:
        max_new_tokens = max(max_new_tokens - len(model.opening) + 1, 0)  # forced tokens count as new ones
    stop = [eos_token_id] if isinstance(eos_token_id, int) else eos_token_id
    ends = end_tokens(model) if stop is None else stop
    drawing = {"temperature": temperature if temperature is not None else 1.0, "top_k": top_k, "top_p": top_p}
    new = generate_tokens(
        model,
        None if is_pair else rows,
        NEW_TOKENS if max_new_tokens is None else max_new_tokens,
        **(drawing if do_sample else {} if num_beams > 1 else {"temperature": 0}),
        beam=num_beams,
        length_penalty=length_penalty,
        stop=stop,
        seed=seed,
        source=rows if is_pair else None,
        recompute=not use_cache,
    )
    given = torch.tensor(model.opening).expand(len(new), -1) if is_pair else _given(input_ids, rows)
    new = new if is_pair else new[:, rows.shape[1] :]
    if pad_token_id is None and isinstance(model.tokenizer, Tokenizer):
        pad_token_id = model.tokenizer.special_token("pad_token")
    if bool((new < 0).any()):  # so there is an id that ends rows
        new = new.masked_fill(new < 0, ends[0] if pad_token_id is None else pad_token_id)
    return torch.cat([given.to(new.device), new], 1)


def _given(ids: Any, rows: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Return the ids as they were given, with padding, in as many rows."""
    ids = torch.as_tensor(ids).reshape(-1, rows.shape[1])
    return ids.repeat_interleave(len(rows) // len(ids), 0)
