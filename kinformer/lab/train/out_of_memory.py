"""Out-of-memory errors of a GPU or a CPU, and a search for the number of batch rows that fit."""

from collections.abc import Callable

import torch

SAYS = ("out of memory", "can't allocate memory", "not enough memory")  # what PyTorch's allocators say


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the error says that memory is too small.

    error: the error.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in SAYS)


def largest_fitting(attempt: Callable[[int], None], rows: int) -> int:
    """Halve a number of rows until an attempt with it fits in memory; return that number, or 0.

    attempt: called with a number of rows. An error other than out of memory is raised.
    rows: number of rows that do not fit.
    """
    while rows := rows // 2:
        torch.cuda.empty_cache()
        if _succeeds(attempt, rows):
            return rows
    return 0


def _succeeds(attempt: Callable[[int], None], rows: int) -> bool:
    """Return True if an attempt with this number of rows fits in memory."""
    try:
        attempt(rows)
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            return False
        raise
    return True
