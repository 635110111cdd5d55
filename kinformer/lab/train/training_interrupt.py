"""Ctrl-C or SIGTERM during a training: the first asks it to stop, the second stops it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupt(KeyboardInterrupt):
    """What the signal `number` asked to stop; of a training, that it saved what there was."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


@contextmanager
def catch_signals(patient: bool = False) -> Iterator[Callable[[], int | None]]:
    """A question, which signal came, if any, in place of an end anywhere; a second one does what it ever did.

    With `patient` it changes nothing: torchrun hands on to its processes a Ctrl-C that they had already.

    Outside the main thread, where signals cannot be caught, the answer stays none.
    """
    signals: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def take(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if not patient:
            signal.signal(number, before[number])

    for handled in SIGNALS:
        before[handled] = signal.signal(handled, take)
    try:
        yield lambda: signals[0] if signals else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
