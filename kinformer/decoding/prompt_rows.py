"""prompt_rows: rows of tokens from the prompts that `generate` takes."""

from collections.abc import Mapping
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

    Errors: TypeError for text and other values; ValueError for numbers that are no token ids, and for an empty batch.
    """
    rows = _as_tensor(tokens)
    if rows is None:
        text = isinstance(tokens, str | bytes) or (isinstance(tokens, list | tuple) and isinstance(tokens[0], str))
        advice = "make it with torch.as_tensor(tokens)"
        if text:
            encoder = (
                "list(text.encode())" if getattr(model, "tokenizer", None) is None else "model.tokenizer.encode(text)"
            )
            advice = f"encode text with {encoder}"
        raise TypeError(f"the prompt is {quote(tokens)}, expected token ids [B, T]; {advice}")
    if rows.dtype == torch.bool or rows.is_floating_point() or rows.is_complex():
        raise ValueError(f"the prompt has no token ids: got {rows.dtype}, expected integers. Pass tokens.long()")
    if rows.dim() == 1:
        rows = rows[None]
    if rows.dim() != 2 or not len(rows):
        raise ValueError(
            f"the prompt is not a batch of rows: got shape {list(rows.shape)}, expected [B, T]. Give one row or more."
        )
    if not rows.shape[1]:
        raise ValueError("the prompt is empty (T = 0); give at least one token for each row")
    return rows


def _as_tensor(tokens: Any) -> Tensor | None:
    """Return a tensor of a tensor, an array, lists of integers or a tokenizer's dict; None for anything else."""
    if isinstance(tokens, Mapping) and "input_ids" in tokens:
        rows, mask = _as_tensor(tokens["input_ids"]), _as_tensor(tokens.get("attention_mask"))
        if rows is None or mask is None:
            return rows
        if rows.shape != mask.shape:
            raise ValueError(f"attention_mask has shape {list(mask.shape)}, but the tokens have {list(rows.shape)}")
        return torch.where(mask.to(rows.device) != 0, rows, -1)
    if isinstance(tokens, Tensor):
        return tokens
    if hasattr(tokens, "__array__"):
        return torch.as_tensor(tokens)
    if _is_list_of_ids(tokens):
        return torch.tensor(tokens, dtype=torch.long)
    if isinstance(tokens, list | tuple) and all(map(_is_list_of_ids, tokens)):
        return pad_sequences(tokens, front=True)
    return None


def _is_list_of_ids(tokens: Any) -> bool:
    return isinstance(tokens, list | tuple | range) and all(isinstance(token, int) for token in tokens)
