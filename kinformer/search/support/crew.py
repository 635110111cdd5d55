"""Crew: threads that work side by side, each by one thread of PyTorch."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Crew:
    """So many threads, the caller's own among them."""

    count: int = 1
    others: Executor | None = None

    def work(self, task: Callable[[P], R], parts: Sequence[P]) -> list[R]:
        """What the task makes of each part, in their order; no gradients."""
        if self.others is None:
            return [task(part) for part in parts]
        begun = [self.others.submit(_plainly, task, part) for part in parts[1:]]
        own = [task(part) for part in parts[:1]]
        return own + [one.result() for one in begun]


@contextmanager
def crew(count: int) -> Iterator[Crew]:
    """A crew while it is wanted.

    Many small steps hardly gain by PyTorch's own threads, which meet again after each of them.
    """
    if count < 2:
        yield Crew()
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(count - 1) as others:
            yield Crew(count, others)
    finally:
        torch.set_num_threads(before)


def cut(count: int, parts: int) -> list[tuple[int, int]]:
    """Where parts of nearly the same size begin and end; one empty part of nothing."""
    size = max(-(-count // parts), 1)
    return [(at, min(at + size, count)) for at in range(0, count, size)] or [(0, 0)]


def _plainly(task: Callable[[P], R], part: P) -> R:
    with torch.no_grad():  # which is said for each thread
        return task(part)
