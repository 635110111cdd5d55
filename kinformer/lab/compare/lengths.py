"""Speed and memory of a member (a named model) as functions of row length."""

from time import monotonic
from typing import Any

from kinformer.lab.cost.cost import cost
from kinformer.lab.cost.free_memory import free_memory
from kinformer.lab.member_choice import MemberChoice

FIRST, DOUBLINGS = 4, 9  # the first row has 1 / FIRST of the training length; number of rows, each twice as long
ROOM = 8  # free memory that the next row needs, in multiples of the peak of the previous row


def against_length(choice: MemberChoice, length: int, seconds: float) -> list[dict[str, Any]]:
    """Measure time and memory of a member (named model) on rows of doubling length, on the CPU.

    Each batch is one row. Each result has `length`, `milliseconds` of a forward and backward pass, `peak_bytes`, and
    `state_bytes` of the decoding state (None without one). The measurement ends early before rows that the member
    refuses, or that may not fit in memory.

    choice: the member and its keywords.
    length: tokens of a training row; the first measured row has a quarter of it.
    seconds: time after which no further row is measured.
    """
    rows: list[dict[str, Any]] = []
    began = monotonic()
    for n in range(DOUBLINGS):
        now = max(2, length // FIRST) * 2**n
        free_bytes = free_memory()
        too_large = free_bytes is not None and rows and ROOM * rows[-1]["peak_bytes"] > free_bytes
        if rows and (monotonic() - began > seconds or too_large):
            break
        try:
            numbers, clock = cost(choice.build(0), 1, now), _milliseconds(choice, now)
        except (ValueError, LookupError):
            break  # the member has too few learned positions for longer rows
        sizes = {"peak_bytes": numbers.peak, "state_bytes": numbers.state}
        rows.append({"length": now, "milliseconds": clock, **sizes})
    return rows


def _milliseconds(choice: MemberChoice, length: int) -> float:
    """Return the milliseconds of a forward and backward pass, the faster of two."""
    model, times = choice.build(0), []
    batch = model.sample(1, length, 0)
    for _ in range(2):
        began = monotonic()
        state = model.start(1, length) if model.lanes else None
        model(batch, state, 0.5).total.backward()
        times.append(1000 * (monotonic() - began))
    return min(times)
