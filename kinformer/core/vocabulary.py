"""Vocabulary: checks that tokens are rows of integers below the size of the vocabulary."""

from collections.abc import Mapping

import torch
from torch import Tensor


def check_token_rows(tokens: Tensor) -> Tensor:
    """Return the tokens after a check of dtype and shape.

    tokens: integers, [B T].

    Errors: TypeError if they are not a tensor of integers; ValueError if they are not rows [B T].
    """
    if not isinstance(tokens, Tensor):
        advice = ""
        if isinstance(tokens, str | bytes):
            advice = ". Encode the text with model.tokenizer.encode(text), or list(text.encode()) for a model of bytes"
        elif isinstance(tokens, Mapping):
            advice = ". Pass its input_ids, with -1 at padding; fit takes the whole dict"
        elif isinstance(tokens, tuple | list) and any(isinstance(part, Tensor) for part in tokens):
            advice = ". Pass one tensor of it: the targets are the next tokens of each row"
        elif isinstance(tokens, list) or hasattr(tokens, "dtype"):
            advice = ". Make it with torch.as_tensor(tokens)"
        raise TypeError(f"tokens are of type {type(tokens).__name__}, expected a tensor of integers [B, T]{advice}")
    if tokens.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"tokens must be integers of 64 or 32 bits, got {tokens.dtype}; convert them with .long()")
    if tokens.dim() != 2:
        raise ValueError(
            f"tokens must be rows [B, T], got shape {list(tokens.shape)}; pass a single row as tokens[None], and one "
            "token of each row as tokens[:, None]"
        )
    return tokens


def check_tokens_below(tokens: Tensor, vocab: int) -> Tensor:
    """Return the tokens after `check_below`.

    tokens: token ids.
    vocab: the number of different tokens.

    Errors: IndexError if an id is not below `vocab`, or is below -1, the mark of padding.
    """
    check_below(tokens, vocab, "token", "make vocab larger")
    if not torch.compiler.is_compiling() and tokens.device.type == "cpu" and tokens.numel():
        if (least := int(tokens.min())) < -1:
            raise IndexError(
                f"token {least} is out of range, expected 0 to {vocab - 1}, or -1 at padding; write -1 there"
            )
    return tokens


def check_below(numbers: Tensor, end: int, name: str, advice: str) -> None:
    """Raise IndexError if one of the numbers, such as token ids, is `end` or more.

    On a GPU, an assertion on the device fails instead, because inspecting the numbers would wait for the device.
    Nothing is checked under compile.

    numbers: integers.
    end: the limit, itself excluded.
    name: the word for a number in the message.
    advice: the end of the message: the way to correct the numbers.
    """
    if torch.compiler.is_compiling() or not numbers.numel():
        return
    problem = f"is out of range, expected 0 to {end - 1}; {advice}"
    if numbers.device.type != "cpu":
        torch._assert_async((numbers < end).all(), f"a {name} {problem}")
    elif (max_number := int(numbers.max())) >= end:
        raise IndexError(f"{name} {max_number} {problem}")
