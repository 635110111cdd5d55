"""Ctrl-C or SIGTERM during a training: the first signal asks it to stop, the second one stops it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupt(KeyboardInterrupt):
    """Exception after Ctrl-C or SIGTERM; a training has saved its weights before it raises this.

    message: the text to show.
    number: number of the signal.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


@contextmanager
def catch_signals(patient: bool = False) -> Iterator[Callable[[], int | None]]:
    """Catch Ctrl-C and SIGTERM in this context; yield a function that reports a signal.

    The function returns the number of the first signal, or None. A second signal stops the process as usual, unless
    `patient` is True. Outside the main thread, where signals cannot be caught, the function always returns None.

    patient: True to catch the second signal too: torchrun passes a Ctrl-C to processes that have already received it.
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
