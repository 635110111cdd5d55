"""Crew: threads that work side by side, each by one thread of PyTorch; and settings of the process that they share."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import torch

P = TypeVar("P")
R = TypeVar("R")


class Setting:
    """A setting of the whole process, for as long as anybody wants it: the first changes it, the last puts it back."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None], value: Any):
        self.get, self.put, self.value = get, put, value
        self.lock, self.wanted, self.before = Lock(), 0, None

    @contextmanager
    def held(self) -> Iterator[None]:
        with self.lock:
            if not self.wanted:
                self.before = self.get()
                self.put(self.value)
            self.wanted += 1
        try:
            yield
        finally:
            with self.lock:
                self.wanted -= 1
                if not self.wanted:
                    self.put(self.before)


ALONE = Setting(torch.get_num_threads, torch.set_num_threads, 1)


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
    """A crew while it is wanted; of 0, the caller alone, whose steps PyTorch's own threads share.

    Small steps lose by those, as they meet again after each of them. Theirs is a setting of the process: a thread that
    uses PyTorch for the first time meanwhile has one of them, until it sets their number.
    """
    if not count:
        yield Crew()
        return
    with ALONE.held(), ThreadPoolExecutor(max(count - 1, 1)) as others:  # which begins no thread before it has work
        yield Crew(count, others if count > 1 else None)


def cut(count: int, parts: int) -> list[tuple[int, int]]:
    """Where parts of nearly the same size begin and end; one empty part of nothing."""
    size = max(-(-count // parts), 1)
    return [(at, min(at + size, count)) for at in range(0, count, size)] or [(0, 0)]


def _plainly(task: Callable[[P], R], part: P) -> R:
    with torch.no_grad():  # which is said for each thread
        return task(part)
