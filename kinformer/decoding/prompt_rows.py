"""prompt_rows: rows of tokens from the prompts that `generate` takes."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.quote import quote
from kinformer.decoding.pad_sequences import pad_sequences


def prompt_rows(tokens: Any, model: Any) -> Int[Tensor, "B T"]:
    """Return prompts as rows of token ids, padded with -1 on the left.

    tokens: integers [B T]; or one prompt, as integers [T] or a list of ids; or a list of prompts; or a dict of
        input_ids and attention_mask, as a tokenizer of transformers returns it.
    model: the model, for the advice about text.

    Errors: TypeError for text and other values; ValueError for numbers that are no token ids, for an empty batch, and
    for an attention_mask of another shape.
    """
    if isinstance(tokens, Mapping) and "input_ids" in tokens:
        rows, mask = prompt_rows(tokens["input_ids"], model), tokens.get("attention_mask")
        return rows if mask is None else _mask_rows(rows, mask)
    ids = _as_tensor(tokens)
    if ids is None:
        text = isinstance(tokens, str | bytes) or (isinstance(tokens, list | tuple) and isinstance(tokens[0], str))
        advice = "make it with torch.as_tensor(tokens)"
        if text:
            encoder = (
                "list(text.encode())" if getattr(model, "tokenizer", None) is None else "model.tokenizer.encode(text)"
            )
            advice = f"encode text with {encoder}"
        raise TypeError(f"the prompt is {quote(tokens)}, expected token ids [B, T]; {advice}")
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise ValueError(f"the prompt has no token ids: got {ids.dtype}, expected integers. Pass tokens.long()")
    if ids.dim() == 1:
        ids = ids[None]
    if ids.dim() != 2 or not len(ids):
        raise ValueError(
            f"the prompt is not a batch of rows: got shape {list(ids.shape)}, expected [B, T]. Give one row or more."
        )
    if not ids.shape[1]:
        raise ValueError("the prompt is empty (T = 0); give at least one token for each row")
    return ids.long()  # smaller integers have no -1, or no maximum


def _mask_rows(rows: Int[Tensor, "B T"], given: Any) -> Int[Tensor, "B T"]:
    """Return rows with -1 where an attention mask is 0 or False."""
    mask = _as_tensor(given)
    if mask is None:
        raise TypeError(f"attention_mask is {quote(given)}, expected 0 or 1 for each token [B, T]")
    if mask.dim() == 1:
        mask = mask[None]
    if rows.shape != mask.shape:
        raise ValueError(f"attention_mask has shape {list(mask.shape)}, but the tokens have {list(rows.shape)}")
    return torch.where(mask.to(rows.device) != 0, rows, -1)


def _as_tensor(values: Any) -> Tensor | None:
    """Return a tensor of a tensor, an array, or a list of numbers or of such lists; None for anything else."""
    if isinstance(values, Tensor):
        return values
    if hasattr(values, "__array__"):
        with suppress(TypeError):  # an array of texts or objects
            return torch.as_tensor(values)
    values = _as_lists(values)
    if _is_list_of_numbers(values):
        return torch.tensor(values, dtype=None if values else torch.long)
    if isinstance(values, list) and all(map(_is_list_of_numbers, values)):
        return pad_sequences(values, front=True)
    return None


def _as_lists(values: Any) -> Any:
    """Return sequences, and tensors and arrays in them, as lists."""
    if isinstance(values, list | tuple | range):
        return [_as_lists(value) for value in values]
    return values.tolist() if hasattr(values, "tolist") else values


def _is_list_of_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int | float) for value in values)
