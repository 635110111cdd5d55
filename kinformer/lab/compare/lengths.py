"""Speed and memory of a member against the length of a row."""

from time import monotonic
from typing import Any

from kinformer.lab.cost.cost import cost
from kinformer.lab.cost.free_memory import free_memory
from kinformer.lab.member_choice import MemberChoice

FIRST, DOUBLINGS = 4, 9  # the part of the length of training with which it begins; how often it is doubled
ROOM = 8  # times the memory of a row that must be free for one twice as long


def against_length(choice: MemberChoice, length: int, seconds: float) -> list[dict[str, Any]]:
    """Longer and longer rows, each twice the last, one at a time on the CPU, until so many seconds are spent.

    Each has `length`, `milliseconds` of a forward and backward, `peak_bytes`, and `state_bytes`, None without a state.
    It ends before rows that the member does not take, and before those for which there may be too little memory.
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
            break  # of learned positions there are so many and no more
        sizes = {"peak_bytes": numbers.peak, "state_bytes": numbers.state}
        rows.append({"length": now, "milliseconds": clock, **sizes})
    return rows


def _milliseconds(choice: MemberChoice, length: int) -> float:
    """The faster of two."""
    model, times = choice.build(0), []
    batch = model.sample(1, length, 0)
    for _ in range(2):
        began = monotonic()
        state = model.start(1, length) if model.lanes else None
        model(batch, state, 0.5).total.backward()
        times.append(1000 * (monotonic() - began))
    return min(times)
