"""Out of memory, on a GPU or a CPU: telling it from other errors, and finding what fits."""

from collections.abc import Callable

import torch

SAYS = ("out of memory", "can't allocate memory", "not enough memory")  # what PyTorch's allocators say


def is_out_of_memory(error: BaseException) -> bool:
    """Is this error one of too little memory?"""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in SAYS)


def largest_fitting(attempt: Callable[[int], None], rows: int) -> int:
    """The most rows, out of `rows` halved again and again, for which an attempt does not run out of memory; 0 if none.

    Any other error is raised as it is.
    """
    while rows := rows // 2:
        torch.cuda.empty_cache()
        if _succeeds(attempt, rows):
            return rows
    return 0


def _succeeds(attempt: Callable[[int], None], rows: int) -> bool:
    try:
        attempt(rows)
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            return False
        raise
    return True
