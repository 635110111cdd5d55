"""Memory of this process, now and at its peak, in RAM or on a GPU."""

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

import torch

CPU = torch.device("cpu")
FIRST = 85 * 10**6  # bytes that a first step adds (torch 2.13): code and the compiler, which optimisers import


def resident(device: torch.device = CPU) -> int | None:
    """Return the bytes of this process in the memory of a device; None if the system does not report them.

    device: the device. On a GPU, the bytes are those that PyTorch holds there.
    """
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def before_training() -> int | None:
    """Estimate the resident bytes of this process in a training, without its tensors; None if unknown."""
    now, begun = resident(), "torch._dynamo" in sys.modules
    return now if now is None or begun else now + FIRST


def release_freed() -> None:
    """Return freed memory of the process to the system, so that later measurements do not reuse it unseen.

    Only glibc can do this; elsewhere nothing happens.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def restart_peak(device: torch.device = CPU) -> bool:
    """Restart the measurement of `peak_resident`; return False if the system cannot do this.

    device: the device.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_resident(device: torch.device = CPU) -> int | None:
    """Return the peak bytes of this process on a device since `restart_peak`; None if unknown.

    device: the device.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    except (OSError, ValueError, StopIteration):
        return None
