"""step_threads: the number of CPU threads of one decoding step."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

FEW_ROWS = 8  # with more rows, products are long enough for several threads
FEW_SPINS = 10_000  # libgomp's own count is at least 300,000 unless a machine has more threads than cores


@contextmanager
def step_threads(rows: int, tokens: int) -> Iterator[None]:
    """Run a decoding step of few rows in one thread if waiting OpenMP threads sleep.

    The number of threads is restored afterwards.

    A decoding step has hundreds of short operations. If its threads sleep between them, each wake-up takes longer than
    a second thread saves: about 60 µs on the machine of `bench/generation.py`, for operations of 10 to 100 µs. Threads
    that spin while they wait are kept.

    rows, tokens: size of the step.
    """
    threads = torch.get_num_threads()
    if threads == 1 or tokens > 1 or rows > FEW_ROWS or not threads_sleep(os.environ):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def threads_sleep(environ: Mapping[str, str]) -> bool:
    """Return True if the environment lets waiting OpenMP threads sleep at once, or after few spins.

    The commands of kinformer set `GOMP_SPINCOUNT`.

    environ: environment variables.
    """
    policy, spins = environ.get("OMP_WAIT_POLICY", "").lower(), environ.get("GOMP_SPINCOUNT", "")
    return policy == "passive" or (policy != "active" and spins.isdecimal() and int(spins) <= FEW_SPINS)
