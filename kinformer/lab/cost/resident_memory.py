"""Resident memory (in RAM) of this process, now and at its peak, as Linux reports it."""

import os
import sys
from pathlib import Path

FIRST = 85 * 10**6  # bytes that a first step adds (torch 2.13): code and the compiler, which optimisers import


def resident() -> int | None:
    """Return the resident bytes of this process; None if the system does not report them."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def before_training() -> int | None:
    """Estimate the resident bytes of this process in a training, without its tensors; None if unknown."""
    now, begun = resident(), "torch._dynamo" in sys.modules
    return now if now is None or begun else now + FIRST


def restart_peak() -> bool:
    """Restart the measurement of `peak_resident`; return False if the system cannot do this."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_resident() -> int | None:
    """Return the most resident bytes of this process since `restart_peak`; None if unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    except (OSError, ValueError, StopIteration):
        return None
