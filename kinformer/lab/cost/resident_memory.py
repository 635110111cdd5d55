"""The memory that this process has, and the most that it had, as Linux tells it."""

import os
import sys
from pathlib import Path

FIRST = 85 * 10**6  # bytes that a first step brings (torch 2.13): the compiler, which optimisers import, and code


def resident() -> int | None:
    """The bytes of memory that this process has now; None where nobody tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def before_training() -> int | None:
    """The bytes that this process will have when it trains, without the tensors of that; None where nobody tells."""
    now, begun = resident(), "torch._dynamo" in sys.modules
    return now if now is None or begun else now + FIRST


def restart_peak() -> bool:
    """From now on `peak_resident` tells anew; False where the system does not forget what was before."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_resident() -> int | None:
    """The most bytes of memory that this process had since `restart_peak`; None where nobody tells."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    except (OSError, ValueError, StopIteration):
        return None
