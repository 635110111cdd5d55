"""The machine: its default device, and words for it and for the versions of a measurement."""

import os
import platform
import re
from contextlib import suppress
from pathlib import Path

import torch

from kinformer import __version__


def default_device() -> torch.device:
    """Return the GPU if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def describe_processor() -> str:
    """Return the processor, its cores and PyTorch's threads: "AMD EPYC (x86_64), cores: 2, threads: 2"."""
    processor = platform.processor() or platform.machine()
    with suppress(OSError):  # only Linux has this file, and not every processor has a name there
        if name := re.search(r"^model name\s*:\s*(\S.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE):
            processor = f"{name[1].strip()} ({processor})"
    return f"{processor}, cores: {os.cpu_count()}, threads: {torch.get_num_threads()}"


def describe_machine() -> str:
    """Return the processor, and the versions of Python, PyTorch and kinformer."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, kinformer {__version__}"
    return f"{describe_processor()}; {versions}"
