"""Vocabulary: tokens are rows of whole numbers, below how many there are."""

import torch
from torch import Tensor


def check_token_rows(tokens: Tensor) -> Tensor:
    """The tokens; TypeError for other than whole numbers, ValueError for other than rows [B T]."""
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise TypeError(f"tokens are whole numbers, and {tokens.dtype} came; give them .long()")
    if tokens.dim() != 2:
        raise ValueError(f"tokens are rows [B T], and {list(tokens.shape)} came; give one row as tokens[None]")
    return tokens


def check_tokens_below(tokens: Tensor, vocab: int) -> Tensor:
    """The tokens; IndexError for one that there is not, as `check_below`."""
    check_below(tokens, vocab, "token", "make vocab larger")
    return tokens


def check_below(numbers: Tensor, end: int, name: str, advice: str) -> None:
    """IndexError for a number from `end` up, where looking costs no wait; on an accelerator its own assertion."""
    if torch.compiler.is_compiling() or not numbers.numel():
        return
    problem = f"is none of the {end} that there are, 0 to {end - 1}; {advice}"
    if numbers.device.type != "cpu":
        torch._assert_async((numbers < end).all(), f"a {name} {problem}")
    elif (max_number := int(numbers.max())) >= end:
        raise IndexError(f"{name} {max_number} {problem}")
